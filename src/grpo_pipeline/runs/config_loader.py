"""Load the configuration, replacing where Kedro would merge."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from kedro.config import BadConfigException, MissingConfigException, OmegaConfigLoader
from omegaconf import DictConfig, OmegaConf
from yaml import MarkedYAMLError

from grpo_pipeline.pipelines.arms import with_arms
from grpo_pipeline.pipelines.parameter_merge import merge, replaced, without
from grpo_pipeline.pipelines.shared_parameters import with_shared
from grpo_pipeline.runs.environments import PLAIN, extended, without_results
from grpo_pipeline.tasks import TASKS

TASK, FOLDER = "{task}", "{folder}"


class ReplacingConfigLoader(OmegaConfigLoader):
    """Merges parameters as Kedro does, and replaces a section by one of another kind.

    The places are conf/base, the environment, and ``--params``, in this order. Below an environment lie those that it
    extends (``runs.environments``). Parameters ``{task}`` are what each task's own section is merged onto. In the catalogue an
    entry ``{task}.…`` stands for one of each task: ``{task}`` and ``{folder}`` are filled in here, placeholders of arms by Kedro.

    Attributes:
        base_parameters: of each file of conf/base, interpolations not resolved; known once the parameters are read.
    """

    base_parameters: Sequence[Mapping[str, Any]] = ()
    _base: Mapping[str, Any] = {}  # parameters of conf/base, interpolations not resolved
    _known_base: Mapping[str, Any] = {}  # the same, where another loader has read them
    _below: Mapping[str, Any] = {}  # all parameters without those of ``--params``

    def __getitem__(self, key: str) -> Any:
        """Load a part of the configuration; the catalogue includes the entries of every task."""
        found = super().__getitem__(key)
        if key == "parameters":
            return with_arms(with_shared(found))
        return self._with_tasks(found) if key == "catalog" else found

    def _with_tasks(self, catalog: dict[str, Any]) -> dict[str, Any]:
        """Fill in ``{task}.…`` in the catalogue for each task; a task's own entry of the same name stays."""
        general = {name: entry for name, entry in catalog.items() if name.startswith(f"{TASK}.")}
        own = {name: entry for name, entry in catalog.items() if name not in general}
        try:
            named = dict(self["globals"])  # with what a runtime parameter replaces
        except (KeyError, MissingConfigException):
            named = {}
        folders = {task: named.get(folder, of) for folder, task, of in self._folders()}
        filled = {
            name.replace(TASK, task): _filled(entry, {TASK: task, FOLDER: folder})
            for task, folder in folders.items()
            for name, entry in general.items()
        }
        return filled | own

    def _folders(self) -> Iterator[tuple[str, str, str]]:
        """Yield for each task the name of its folder among the globals, the task, and its default folder."""
        suffix = "" if self.env in PLAIN else f"_{self.env}"
        yield from ((f"{task}_folder", task, task + suffix) for task in TASKS)

    def _read_raw_config(self, key: str) -> Any:
        try:
            return self._read_layers(key)
        except MarkedYAMLError:
            self._refuse_yaml(key)
            raise

    def _read_layers(self, key: str) -> Any:
        """Read the base and the environment, together with the environments that it extends."""
        env = self.env or self.default_run_env
        if key == "parameters" and self._known_base:
            return {Path(f"{key}.yml"): OmegaConf.create(dict(self._known_base))}, {}, "", "", set()
        base, own, base_path, path, files = super()._read_raw_config(key)
        below = extended(self.conf_source, env) if env != self.base_env else []
        patterns = self.config_patterns[key]
        layers = [self._read_dir_configs(str(folder), patterns, key, files) for folder in below]
        layers.append(own)
        if key == "parameters":
            # From the base upwards: what a layer replaces, it replaces of all layers below.
            self.base_parameters = [_plain(config) for config in base.values()]
            self._base = _joined(base)
            self._below = self._join(key, [self._base, *map(_joined, layers)])
            whole = {Path(path) / f"{key}.yml": OmegaConf.create(dict(self._below))}
            base, own = ({}, whole) if env != self.base_env else (whole, {})
        elif len(layers) > 1:
            joined = self._join(key, [_joined(layer) for layer in layers])
            own = {Path(path) / f"{key}.yml": OmegaConf.create(joined)}
        return base, own, base_path, path, files

    def _join(self, key: str, layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Merge the layers of an environment: those that it extends, the lowest first, then its own."""
        if self.merge_strategy.get(key) == "soft":
            return reduce(merge, layers)
        if key == "globals":
            return without_results(layers, self.env)
        return reduce(operator.or_, layers)

    def _refuse_yaml(self, key: str) -> None:
        """Name the first file that is no plain YAML, because the reader's error on a tag does not name it.

        Raises:
            BadConfigException: naming file, line and what stands there.
        """
        env = self.env or self.default_run_env
        below = extended(self.conf_source, env) if env != self.base_env else []
        folders = [Path(self.conf_source) / str(name) for name in (self.base_env, *below, env)]
        files = {
            path: None
            for folder in folders
            for pattern in self.config_patterns[key]
            for path in sorted(folder.glob(pattern))
            if path.suffix in (".yml", ".yaml")
        }
        for path in files:
            try:
                OmegaConf.load(path)
            except MarkedYAMLError as error:
                line = error.problem_mark.line + 1 if error.problem_mark else "?"
                raise BadConfigException(
                    f"{path} line {line} must be plain YAML, without tags and with each key once, got: {error.problem}; correct "
                    "the line"
                ) from error

    def _merge_and_resolve(self, key: str, config_per_file: dict[Path, Any]) -> Any:
        given = _plain(self.runtime_params)
        if key == "parameters" and given:
            # Kedro puts them into base and environment, one by one: what they replace goes out of both.
            gone = list(replaced(self._below, given))
            kept = {path: without(_plain(file), gone) for path, file in config_per_file.items()}
            config_per_file = {path: OmegaConf.create(config) for path, config in kept.items()}
        return super()._merge_and_resolve(key, config_per_file)

    @staticmethod
    def _soft_merge(
        config: dict[str, Any], env_config: dict[str, Any], env_path: str | None = None
    ) -> Any:
        return merge(config, env_config)


def base_parameters(loader: Any) -> dict[str, Any]:
    """Read the parameters of conf/base alone, the defaults; empty if they are no files."""
    if not isinstance(loader, OmegaConfigLoader):
        return {}
    base: OmegaConfigLoader = type(loader)(
        loader.conf_source,
        env=loader.base_env,
        base_env=loader.base_env,
        default_run_env=loader.base_env,
        config_patterns=loader.config_patterns,
        merge_strategy=loader.merge_strategy,
    )
    if isinstance(loader, ReplacingConfigLoader) and isinstance(base, ReplacingConfigLoader):
        base._known_base = loader._base
    try:
        return dict(base["parameters"])
    except (KeyError, MissingConfigException):
        return {}


def _joined(config_per_file: Mapping[Path, Any]) -> dict[str, Any]:
    """Join the files of an environment, interpolations not resolved."""
    return _plain(OmegaConf.unsafe_merge(*config_per_file.values())) if config_per_file else {}


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    """Replace placeholders in every text of a tree."""
    if isinstance(value, str):
        for placeholder, word in words.items():
            value = value.replace(placeholder, word)
        return value
    if isinstance(value, Mapping):
        return {name: _filled(part, words) for name, part in value.items()}
    return [_filled(part, words) for part in value] if isinstance(value, list) else value


def _plain(config: Any) -> dict[str, Any]:
    """Convert to nested dictionaries, interpolations not resolved."""
    found: Any = (
        OmegaConf.to_container(config, resolve=False) if isinstance(config, DictConfig) else config
    )
    return dict(found or {})
