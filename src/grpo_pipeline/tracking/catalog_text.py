"""Write the catalogue's configuration as text, without secrets."""

from collections.abc import Mapping
from typing import Any

import yaml

from grpo_pipeline.tracking.addresses import redact
from grpo_pipeline.tracking.flat_parameters import to_plain

SECRET_KEYS = ("credentials", "password", "secret", "token", "api_key")


def catalog_text(catalog: Mapping[str, Any]) -> str:
    """Return the catalogue's configuration as YAML, without credentials and without passwords in addresses."""
    return yaml.safe_dump(_without_secrets(to_plain(catalog)), sort_keys=False, allow_unicode=True)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_secrets(item)
            for key, item in value.items()
            if str(key).lower() not in SECRET_KEYS
        }
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return redact(value) if isinstance(value, str) and "://" in value else value
