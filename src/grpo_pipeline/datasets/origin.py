"""Say where the data of an environment come from, for those who do not have them: ``<task>_origin`` in its globals.yml."""

from collections.abc import Mapping
from typing import Any


def where_to_get(metadata: Mapping[str, Any] | None) -> str:
    """Return how a sentence about absent data ends: with the ``origin`` of a catalogue entry's metadata; else empty."""
    origin = (metadata or {}).get("origin")
    return f"; the data of this environment: {origin}" if origin else ""
