"""Files of catalogue entries, and the configuration as text."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from grpo_pipeline.tracking.flatten import to_plain
from grpo_pipeline.tracking.store import redact

SECRET_KEYS = ("credentials", "password", "secret", "token", "api_key")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a catalogue name fits one of the shell patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def dataset_path(dataset: Any) -> Path | None:
    """Return the local file or folder that a dataset saves to (of a versioned one: in this run), None if it has none.

    Reads the attributes by which Kedro's file datasets say where they are.
    """
    inner = getattr(dataset, "_dataset", dataset)  # of a CachedDataset
    if getattr(inner, "_version", None):
        where = inner._get_versioned_path(inner.resolve_save_version())
    else:
        where = getattr(inner, "_filepath", None) or getattr(inner, "_path", None)
    return None if where is None else Path(str(where))


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Return all resolved parameters as YAML."""
    return yaml.safe_dump(to_plain(parameters), sort_keys=False, allow_unicode=True)


def catalog_text(catalog: Mapping[str, Any]) -> str:
    """Return the catalogue's configuration as YAML, without credentials and without passwords in addresses."""
    return yaml.safe_dump(_without_secrets(to_plain(catalog)), sort_keys=False, allow_unicode=True)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(item) for key, item in value.items() if str(key).lower() not in SECRET_KEYS}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return redact(value) if isinstance(value, str) and "://" in value else value
