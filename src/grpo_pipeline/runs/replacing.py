"""Kedro's configuration loader, and what it replaces as a whole where it would merge: ``tasks.replaced``."""

from pathlib import Path
from typing import Any

from kedro.config import OmegaConfigLoader
from omegaconf import DictConfig, OmegaConf

from grpo_pipeline.tasks.replaced import without_replaced


class ReplacingConfigLoader(OmegaConfigLoader):
    """Merges parameters as Kedro does, and takes reward weights exactly as the last place that names any has them.

    The places are conf/base, the environment, and ``--params``, in this order.
    """

    def _merge_and_resolve(self, key: str, config_per_file: dict[Path, Any]) -> Any:
        if key == "parameters":
            given = _plain(self.runtime_params)
            kept = {path: without_replaced(_plain(config), given, depth=1) for path, config in config_per_file.items()}
            config_per_file = {path: OmegaConf.create(config) for path, config in kept.items()}
        return super()._merge_and_resolve(key, config_per_file)

    @staticmethod
    def _soft_merge(config: dict[str, Any], env_config: dict[str, Any], env_path: str | None = None) -> Any:
        return OmegaConfigLoader._soft_merge(without_replaced(config, env_config, depth=1), env_config, env_path)


def _plain(config: Any) -> dict[str, Any]:
    """Return nested dictionaries, their interpolations not resolved yet."""
    found: Any = OmegaConf.to_container(config, resolve=False) if isinstance(config, DictConfig) else config
    return dict(found or {})
