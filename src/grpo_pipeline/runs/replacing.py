"""Kedro's configuration loader, with a list of mappings that an environment replaces as a whole instead of merging them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedro.config import OmegaConfigLoader
from omegaconf import DictConfig, OmegaConf

# Parameters that are replaced as a whole: who names the weights of the rewards gets these, and none of the defaults beside them.
#
# Elsewhere an environment, ``--params`` or an arm of a comparison names what differs from the defaults, and the rest stays.

# Paths inside the parameters of a task.
REPLACED = ("rewards.weights", "rewards.own")


def without_replaced(base: Mapping[str, Any], change: Mapping[str, Any], *, depth: int) -> dict[str, Any]:
    """Return the base without what is replaced as a whole and the change names.

    Args:
        base: what the change is merged onto; it stays as it is.
        change: nested like the base.
        depth: how many names lead to the parameters of a task: 0 for these themselves, 1 where tasks have names.
    """
    if depth:
        return {
            name: without_replaced(below, change[name], depth=depth - 1) if _are_mappings(below, change.get(name)) else below
            for name, below in base.items()
        }
    kept = dict(base)
    for path in REPLACED:
        section, key = path.split(".")
        if _are_mappings(kept.get(section), change.get(section)) and key in change[section]:
            kept[section] = {name: value for name, value in kept[section].items() if name != key}
    return kept


def _are_mappings(*values: Any) -> bool:
    return all(isinstance(value, Mapping) for value in values)


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


# Configuration whose globals can be set for one run: ``kedro run --params attention_folder=attention_seed1``.

SEPARATORS = ("/", "\\")


class RunConfigLoader(ReplacingConfigLoader):
    """The project's loader; a runtime parameter named like an entry in globals.yml replaces it, and is no parameter.

    So a run can have a folder of results of its own, in every entry of the catalogue at once.

    Raises:
        ValueError: if a name ``…_folder`` is given a path: it is one folder in each layer.
    """

    def __init__(
        self, conf_source: str, env: str | None = None, runtime_params: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Read the globals and replace what the runtime parameters name; see ``OmegaConfigLoader``."""
        runtime = dict(runtime_params or {})
        super().__init__(conf_source, env, runtime, **kwargs)
        chosen = {name: runtime.pop(name) for name in set(self._globals) & set(runtime)}
        for name, value in chosen.items():
            if name.endswith("_folder") and (not str(value) or any(mark in str(value) for mark in SEPARATORS)):
                raise ValueError(f"{name} must be the name of one folder, got {value!r}; give it without a slash")
        if chosen:
            self["globals"] = {**self._globals, **{name: str(value) for name, value in chosen.items()}}
            self.runtime_params = runtime
