"""Kedro's configuration loader: one catalogue for all tasks, and what is replaced as a whole where Kedro would merge."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedro.config import MissingConfigException, OmegaConfigLoader
from omegaconf import DictConfig, OmegaConf

from grpo_pipeline.pipelines.arms import with_arms, without_replaced
from grpo_pipeline.tasks import TASKS

TASK, FOLDER = "{task}", "{folder}"
PLAIN = (None, "base", "local")  # environments whose results lie in the task's own folder


class ReplacingConfigLoader(OmegaConfigLoader):
    """Merges parameters as Kedro does, and takes reward weights exactly as the last place that names any has them.

    The places are conf/base, the environment, and ``--params``, in this order. In the catalogue an entry ``{task}.…`` stands for
    one of each task: ``{task}`` and ``{folder}`` are filled in here, placeholders of arms by Kedro.
    """

    def __getitem__(self, key: str) -> Any:
        """Return a part of the configuration, the catalogue with the entries of every task."""
        found = super().__getitem__(key)
        if key == "parameters":
            return with_arms(found)
        return self._with_tasks(found) if key == "catalog" else found

    def _with_tasks(self, catalog: dict[str, Any]) -> dict[str, Any]:
        """Return the catalogue with ``{task}.…`` filled in; a task's own entry of the same name stays."""
        general = {name: entry for name, entry in catalog.items() if name.startswith(f"{TASK}.")}
        own = {name: entry for name, entry in catalog.items() if name not in general}
        try:
            named = dict(self["globals"])  # with what a runtime parameter replaces
        except (KeyError, MissingConfigException):
            named = {}
        suffix = "" if self.env in PLAIN else f"_{self.env}"
        folders = {task: named.get(f"{task}_folder", task + suffix) for task in TASKS}
        filled = {
            name.replace(TASK, task): _filled(entry, {TASK: task, FOLDER: folder})
            for task, folder in folders.items()
            for name, entry in general.items()
        }
        return filled | own

    def _merge_and_resolve(self, key: str, config_per_file: dict[Path, Any]) -> Any:
        if key == "parameters":
            given = _plain(self.runtime_params)
            kept = {
                path: without_replaced(_plain(config), given, depth=1)
                for path, config in config_per_file.items()
            }
            config_per_file = {path: OmegaConf.create(config) for path, config in kept.items()}
        return super()._merge_and_resolve(key, config_per_file)

    @staticmethod
    def _soft_merge(
        config: dict[str, Any], env_config: dict[str, Any], env_path: str | None = None
    ) -> Any:
        return OmegaConfigLoader._soft_merge(
            without_replaced(config, env_config, depth=1), env_config, env_path
        )


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    """Return a tree with placeholders replaced in every text."""
    if isinstance(value, str):
        for placeholder, word in words.items():
            value = value.replace(placeholder, word)
        return value
    if isinstance(value, Mapping):
        return {name: _filled(part, words) for name, part in value.items()}
    return [_filled(part, words) for part in value] if isinstance(value, list) else value


def _plain(config: Any) -> dict[str, Any]:
    """Return nested dictionaries, their interpolations not resolved yet."""
    found: Any = (
        OmegaConf.to_container(config, resolve=False) if isinstance(config, DictConfig) else config
    )
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
        self,
        conf_source: str,
        env: str | None = None,
        runtime_params: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Read the globals and replace what the runtime parameters name; see ``OmegaConfigLoader``."""
        runtime = dict(runtime_params or {})
        super().__init__(conf_source, env, runtime, **kwargs)
        chosen = {name: runtime.pop(name) for name in set(self._globals) & set(runtime)}
        for name, value in chosen.items():
            if name.endswith("_folder") and (
                not str(value) or any(mark in str(value) for mark in SEPARATORS)
            ):
                raise ValueError(
                    f"{name} must be the name of one folder, got {value!r}; give it without a slash"
                )
        if chosen:
            self["globals"] = {
                **self._globals,
                **{name: str(value) for name, value in chosen.items()},
            }
            self.runtime_params = runtime
