"""Load the configuration, replacing where Kedro would merge, and check the parameters before anything long is imported.

Kedro asks the functions of the nodes which model reads a section, and these import torch. The specs of the tasks say the same
at once (``pipelines.params.sections``), so that a wrong value or a misspelt name ends a command before torch is imported.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial, reduce
from pathlib import Path
from typing import Any

from kedro.config import BadConfigException, MissingConfigException, OmegaConfigLoader
from kedro.validation.parameter_validator import ParameterValidator
from kedro.validation.type_extractor import TypeExtractor
from omegaconf import DictConfig, OmegaConf
from yaml import MarkedYAMLError

from grpo_pipeline.pipeline_registry import SHORT
from grpo_pipeline.pipelines.arms import arms_of, described_arms, merge, with_arms, without_replaced
from grpo_pipeline.pipelines.params import sections
from grpo_pipeline.pipelines.shared_parameters import with_shared
from grpo_pipeline.runs.environments import PLAIN, extended, without_results
from grpo_pipeline.runs.machine import check_threads
from grpo_pipeline.tasks import TASKS, find_task

TASK, FOLDER = "{task}", "{folder}"


class ReplacingConfigLoader(OmegaConfigLoader):
    """Merges parameters as Kedro does, and takes reward weights exactly as the last place that names any has them.

    The places are conf/base, the environment, and ``--params``, in this order. Below an environment lie those that it
    extends (``runs.environments``). Parameters ``{task}`` are what each task's own section is merged onto. In the catalogue an
    entry ``{task}.…`` stands for one of each task: ``{task}`` and ``{folder}`` are filled in here, placeholders of arms by Kedro.

    Attributes:
        base_parameters: of each file of conf/base, interpolations not resolved; known once the parameters are read.
    """

    base_parameters: Sequence[Mapping[str, Any]] = ()

    def __getitem__(self, key: str) -> Any:
        """Return a part of the configuration, the catalogue with the entries of every task."""
        found = super().__getitem__(key)
        if key == "parameters":
            return with_arms(with_shared(found))
        return self._with_tasks(found) if key == "catalog" else found

    def _with_tasks(self, catalog: dict[str, Any]) -> dict[str, Any]:
        """Return the catalogue with ``{task}.…`` filled in; a task's own entry of the same name stays."""
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
        """Yield of each task the name of its folder among the globals, the task, and the folder where none is given."""
        suffix = "" if self.env in PLAIN else f"_{self.env}"
        yield from ((f"{task}_folder", task, task + suffix) for task in TASKS)

    def _read_raw_config(self, key: str) -> Any:
        try:
            return self._read_layers(key)
        except MarkedYAMLError:
            self._refuse_yaml(key)
            raise

    def _read_layers(self, key: str) -> Any:
        """Read the base and the environment, which stands on what it extends."""
        base, own, base_path, path, files = super()._read_raw_config(key)
        if key == "parameters":
            self.base_parameters = [_plain(config) for config in base.values()]
        env = self.env or self.default_run_env
        if below := extended(self.conf_source, env) if env != self.base_env else []:
            patterns = self.config_patterns[key]
            layers = [self._read_dir_configs(str(folder), patterns, key, files) for folder in below]
            joined = self._join(key, [_joined(layer) for layer in (*layers, own)])
            own = {Path(path) / f"{key}.yml": OmegaConf.create(joined)}
        return base, own, base_path, path, files

    def _join(self, key: str, layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Merge what an environment extends, the lowest first, with what it says itself, which comes last."""
        if self.merge_strategy.get(key) == "soft":
            return reduce(partial(merge, depth=1), layers)
        if key == "globals":
            return without_results(layers, self.env)
        return reduce(operator.or_, layers)

    def _refuse_yaml(self, key: str) -> None:
        """Name the first file that is no plain YAML; a tag is refused by the reader, which does not know the file.

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
        return merge(config, env_config, depth=1)


def base_parameters(loader: Any) -> dict[str, Any]:
    """Read the parameters of conf/base alone: the defaults. Nothing where they are no files of a configuration."""
    if not isinstance(loader, OmegaConfigLoader):
        return {}
    base = type(loader)(
        loader.conf_source,
        env=loader.base_env,
        base_env=loader.base_env,
        default_run_env=loader.base_env,
        config_patterns=loader.config_patterns,
        merge_strategy=loader.merge_strategy,
    )
    try:
        return dict(base["parameters"])
    except (KeyError, MissingConfigException):
        return {}


def _joined(config_per_file: Mapping[Path, Any]) -> dict[str, Any]:
    """Return the files of one environment as one, interpolations not resolved."""
    return _plain(OmegaConf.unsafe_merge(*config_per_file.values())) if config_per_file else {}


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
        # A task of another package needs no line in globals.yml: its folder can be interpolated, and given for one run.
        self["globals"] = {name: folder for name, _, folder in self._folders()} | self._globals
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


DEPTH = 2  # deeper names are refused by the model of their section
CHOICES = ("never", "auto")


def check_parameters(given: Mapping[str, Any], loader: Any, pipelines: Sequence[str]) -> None:
    """Refuse a value that the model of its section refuses, and a name that nothing reads.

    Args:
        given: all parameters of the run.
        loader: that has read them, for the names in conf/base and in globals.yml.
        pipelines: names of those that are to be run, none for the default; checked are the values of their tasks.

    Raises:
        ParameterValidationError: with all values that are wrong, as Kedro says them.
        ValueError: for a name that nothing reads, or a wrong value of what concerns the whole run.
    """
    check_seed(given.get("seed", 0))
    specs = {task: find_task(task).with_stages_of(given.get(task)) for task in TASKS}
    models = {
        task: {
            f"{task}.{name}": model for name, model in sections(spec, arms_of(spec, given)).items()
        }
        for task, spec in specs.items()
    }
    chosen = {path: model for task in tasks_of(pipelines) for path, model in models[task].items()}
    validator = ParameterValidator({})
    validator.type_extractor = DeclaredTypes(chosen)
    validator.validate_raw_params(dict(given))
    try:
        others = loader["globals"]
    except (KeyError, MissingConfigException):
        others = {}
    known = [
        *(f"{task}.arms" for task in TASKS),
        *(f"{task}.{stage}" for task, spec in specs.items() for stage in spec.optional_stages),
        *(path for found in models.values() for path in found),
        *(
            f"{task}.{arm}.{name}"
            for task in TASKS
            for arm in described_arms(task, given.get(task))
            for name in given[task][arm]
        ),
    ]
    check_names(given, loader.base_parameters, known, others=others)
    check_threads(given.get("threads", 1))


def check_seed(seed: Any) -> None:
    """Refuse a ``seed`` that is none, under its own name: sections that take it over would name themselves.

    Raises:
        ValueError: if it is no whole number, or a negative one.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(
            f"seed must be a whole number of at least 0, got {seed!r}; 0 is the default"
        )


class DeclaredTypes(TypeExtractor):
    """The types of parameters as the specs declare them, in the place of those in the signatures of nodes."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        super().__init__({})
        self._types = dict(types)

    def extract_types_from_pipelines(self) -> dict[str, type]:
        """Return path -> type."""
        return self._types


def tasks_of(pipelines: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks whose parameters pipelines read: all with the default one, as Kedro checks them."""
    if not pipelines or "__default__" in pipelines:
        return tuple(TASKS)
    first = next(iter(TASKS))
    named = {
        task for name in pipelines for task in TASKS if name == task or name.startswith(f"{task}_")
    }
    return tuple(
        task for task in TASKS if task in named or (task == first and set(SHORT) & set(pipelines))
    )


def check_names(
    given: Mapping[str, Any],
    base: Iterable[Mapping[str, Any]],
    read: Iterable[str],
    *,
    others: Iterable[str],
) -> None:
    """Refuse a parameter that no pipeline reads and conf/base does not have: it would change nothing.

    Args:
        given: all parameters of the run.
        base: those of conf/base, of each of its files.
        read: names of the sections that pipelines read.
        others: names that are no parameters and may be given as one on the command line: those of globals.yml.

    Raises:
        ValueError: naming the first one and what may be meant; also if ``resume`` is none of its choices.
    """
    known = {path for name in read for path in beginnings(name)}
    known |= {path for file in base for path in paths(file)}
    for path in paths(given):
        if path not in known and not path.startswith("_"):
            parent = path.rpartition(".")[0]
            close = get_close_matches(
                path, [*(name for name in known if name.rpartition(".")[0] == parent), *others], n=1
            )
            meant = f"did you mean {close[0]}?" if close else "remove it or correct its name"
            raise ValueError(
                f"{path} must be a parameter of this project, got an unknown name; {meant}"
            )
    if (resume := given.get("resume", CHOICES[0])) not in CHOICES:
        raise ValueError(
            f"resume must be never or auto, got {resume!r}; use --params resume=auto to go on from a checkpoint"
        )
    if not isinstance(details := given.get("details", False), bool):
        raise ValueError(f"details must be true or false, got {details!r}; false is the default")


def paths(parameters: Mapping[str, Any], *, depth: int = DEPTH) -> Iterator[str]:
    """Yield the dotted names of parameters down to a depth, a name before what it holds."""
    for name, value in parameters.items():
        yield str(name)
        if depth > 1 and isinstance(value, Mapping):
            yield from (f"{name}.{path}" for path in paths(value, depth=depth - 1))


def beginnings(name: str) -> Iterator[str]:
    """Yield ``a``, ``a.b`` and so on of a dotted name."""
    parts = name.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
