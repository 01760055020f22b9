"""Write where to get the data of an environment: ``<task>_origin`` in its globals.yml."""

from collections.abc import Mapping
from typing import Any


def where_to_get(metadata: Mapping[str, Any] | None) -> str:
    """Write the end of a sentence about missing data: the ``origin`` of a catalogue entry's metadata, or ""."""
    origin = (metadata or {}).get("origin")
    return f"; the data of this environment: {origin}" if origin else ""
