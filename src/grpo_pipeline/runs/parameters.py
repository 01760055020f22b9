"""Check the parameters of a run before anything long is imported.

Kedro reads the models of sections from the nodes' functions, which import torch. The specs of the tasks name the same models
without torch (``pipelines.params.sections``). So a wrong value or a misspelt name ends a command before torch is imported.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from kedro.config import MissingConfigException
from kedro.validation.parameter_validator import ParameterValidator
from kedro.validation.type_extractor import TypeExtractor

from grpo_pipeline.errors import OF_AN_OLDER_VERSION
from grpo_pipeline.migrate import is_old
from grpo_pipeline.pipeline_registry import SHORT
from grpo_pipeline.pipelines.arms import arms_of, described_arms
from grpo_pipeline.pipelines.params import sections
from grpo_pipeline.runs.threads import check_threads
from grpo_pipeline.tasks import TASKS, find_task

DEPTH = 2  # deeper names are refused by the model of their section

CHOICES = ("never", "auto")


def check_parameters(given: Mapping[str, Any], loader: Any, pipelines: Sequence[str]) -> None:
    """Refuse a value that the model of its section refuses, and a name that nothing reads.

    Args:
        given: all parameters of the run.
        loader: loader that has read them, for the names in conf/base and in globals.yml.
        pipelines: names of the pipelines to run, none for the default; values of their tasks are checked.

    Raises:
        ParameterValidationError: with all wrong values, in Kedro's form.
        ValueError: for a name that nothing reads, or a wrong value of a parameter of the whole run.
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
    """Refuse an invalid ``seed`` under its own name, because the sections that use it would name themselves.

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
        """Map path -> type."""
        return self._types


def tasks_of(pipelines: Sequence[str]) -> tuple[str, ...]:
    """List the tasks whose parameters pipelines read; the default pipeline checks all, as Kedro does."""
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
        base: parameters of each file of conf/base.
        read: names of the sections that pipelines read.
        others: names of globals.yml, which the command line may set like parameters.

    Raises:
        ValueError: a name is unknown. The sentence names the first one and a likely name. Also if ``resume`` is none of its
            choices.
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
            meant = OF_AN_OLDER_VERSION if is_old(path) else meant
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
    """Yield the dotted names of parameters down to a depth, a section before its content."""
    for name, value in parameters.items():
        yield str(name)
        if depth > 1 and isinstance(value, Mapping):
            yield from (f"{name}.{path}" for path in paths(value, depth=depth - 1))


def beginnings(name: str) -> Iterator[str]:
    """Yield ``a``, ``a.b`` and so on of a dotted name."""
    parts = name.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
