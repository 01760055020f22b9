"""Show an error in the user's input as one sentence; any other error keeps its traceback."""

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any

from kedro.config import BadConfigException, MissingConfigException
from kedro.io import DatasetError
from kedro.io.core import VersionNotFoundError
from kedro.validation.exceptions import ParameterValidationError
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from grpo_pipeline.migrate import is_old

# Errors about the user's input, wherever they are raised.
EXPECTED = (
    BadConfigException,
    DatasetError,
    MissingConfigException,
    OSError,
    OmegaConfBaseException,
    ParameterValidationError,
    YAMLError,
)
# The same, by name: their modules import torch, and an error of a module that was never imported cannot occur.
OWN = (
    "grpo_pipeline.core.policy_gradient.hybrid_loss:NonFiniteLossError",
    "grpo_pipeline.core.storage.checkpoint:CheckpointError",
    "grpo_pipeline.core.training.optim:NonFiniteGradientError",
    "grpo_pipeline.pipelines.experiments.trials.records:CompareError",
    "grpo_pipeline.pipelines.gradient_flow:GradientFlowError",
    "grpo_pipeline.rewards.group_rewards:RewardFailedError",
    "grpo_pipeline.rewards.pool_error:RewardPoolError",
    "grpo_pipeline.runs.lock:HeldError",
)
# Kedro's prefixes of a dataset's error; the catalogue puts the dataset's name before it.
WRAPPER = re.compile(r"(?:\S+: )?Failed while (?:loading data from|saving data to) dataset ")
ROOM = (
    "must be writable",
    "free some space and run the command again: what was there before is unchanged",
)
RIGHTS = (
    "must be readable and writable for this user",
    "change its rights, or write elsewhere with --params data=<another folder>",
)
DISK = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EROFS: RIGHTS,
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
}
OURS = Path(__file__).resolve().parent
PARAMETER = re.compile(r"^- Parameter '([^']+)': ", re.MULTILINE)
PROBLEM = re.compile(
    r"^(?:.*validation errors? for \w+|(?P<path>\S+))\n"
    r"  (?P<message>.*?) \[type=(?P<type>\w+), input_value=(?P<value>.*), input_type=(?P<kind>\w+)",
    re.MULTILINE,
)
# pydantic's kind of a wrong value -> the allowed values, in words.
WHOLE, NUMBER, SWITCH = "a whole number", "a number", "true or false"
WANTED = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), WHOLE),
    **dict.fromkeys(("float_parsing", "float_type"), NUMBER),
    **dict.fromkeys(("bool_parsing", "bool_type"), SWITCH),
    "finite_number": "a finite number",
    "string_type": "a text",
}
SECTION_TYPES = ("dataclass_type", "model_type", "model_attributes_type", "dict_type")
SCHEDULE = "a number, or a schedule such as {kind: linear, start: 0.1, end: 0.0}"
NO_ENVIRONMENT = "Given configuration path either does not exist"
OF_AN_OLDER_VERSION = (
    "it is of an older version: python -m grpo_pipeline.migrate conf/<yours> prints the new form"
)
SCALARS = ("str", "int", "float", "bool")
LONGEST = 1000


def sentence(error: BaseException, *, parameters: Mapping[str, Any] | None = None) -> str | None:
    """Write an error of the user's input as a sentence; None for a fault of the code.

    Args:
        error: the error that ended the run.
        parameters: all parameters, to suggest a name for a misspelt one.
    """
    relevant = unwrap(error)
    if isinstance(relevant, ParameterValidationError):
        return "; ".join(parameter_sentences(str(relevant), parameters or {}))
    if not is_expected(relevant):
        return None
    if isinstance(relevant, VersionNotFoundError):
        return f"{dataset_file(str(relevant))} must hold a version of its data, got none; run the pipeline that writes it first"
    if isinstance(relevant, FileNotFoundError) and relevant is not error and relevant.errno:
        place = relevant.filename or dataset_file(str(error))
        return f"{place} must be there, got no such file; run the pipeline that writes it first, or correct the path"
    text = " ".join(str(relevant).split()) or type(relevant).__name__
    if text.startswith(NO_ENVIRONMENT):
        return environment_sentence(Path(text.rpartition(": ")[2]))
    if isinstance(relevant, OSError) and relevant.errno in DISK:
        place = relevant.filename or (
            dataset_file(str(error)) if relevant is not error else "the data folder"
        )
        rule, remedy = DISK[relevant.errno]
        return f"{place} {rule}, got {relevant.strerror}; {remedy}"
    if relevant is not error and not WRAPPER.match(text) and is_library(relevant):
        text = f"{dataset_file(str(error))}: {text}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def environment_sentence(folder: Path) -> str:
    """Write the error of an environment that has no folder in ``conf/``."""
    names = sorted(path.name for path in folder.parent.glob("[!.]*") if path.is_dir())
    return f"--env must name a folder of {folder.parent}, got {folder.name!r}; there are {', '.join(names)}"


def unwrap(error: BaseException) -> BaseException:
    """Find the error inside of Kedro's "failed while loading" and "failed while saving"."""
    while (
        isinstance(error, DatasetError)
        and WRAPPER.match(str(error))
        and error.__cause__ is not None
    ):
        error = error.__cause__
    return error


def is_expected(error: BaseException) -> bool:
    """Check whether an error is about the input; a ``ValueError`` is if this package, Kedro or a file reader raised it.

    So is a library that this package asks the user to install.
    """
    if isinstance(error, EXPECTED) or any(
        f"{kind.__module__}:{kind.__name__}" in OWN for kind in type(error).__mro__
    ):
        return True
    if isinstance(error, ModuleNotFoundError) and not is_library(error):
        return True
    return isinstance(error, ValueError) and (
        not is_library(error) or type(error).__module__.partition(".")[0] in ("pandas", "json")
    )


def is_library(error: BaseException) -> bool:
    """Check whether an error was raised by neither this package nor Kedro."""
    frames = list(files(error.__traceback__))
    return bool(frames) and not (OURS in frames[-1].parents or "kedro" in frames[-1].parts)


def files(trace: TracebackType | None) -> Iterator[Path]:
    """Yield the source files of a traceback, the outermost first; links are followed."""
    while trace is not None:
        yield Path(trace.tb_frame.f_code.co_filename).resolve()
        trace = trace.tb_next


def dataset_file(message: str) -> str:
    """Return the file that a dataset's description names, else the description."""
    described = message.partition("\n")[0]
    found = re.search(r"filepath=(?:\w+\()?'?([^',)]+)", described)
    return found[1] if found else described


def parameter_sentences(message: str, parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each parameter that Kedro's validation has refused."""
    starts = [*PARAMETER.finditer(message)]
    for start, end in zip(starts, [*(match.start() for match in starts[1:]), None], strict=True):
        text, name = message[start.end() : end], start[1]
        problems = [*PROBLEM.finditer(text)]
        if not problems and "not Optional" in text:
            yield f"{name} must not be null; leave it out for its default, or say what it is"
        elif not problems:
            yield f"parameter {name}: {' '.join(text.split())}"
        for problem in problems:
            path = filter(None, f"{name}.{problem['path'] or ''}".split("."))
            yield parameter_sentence(".".join(without_tags(path, parameters)), problem, parameters)


def parameter_sentence(path: str, problem: re.Match[str], parameters: Mapping[str, Any]) -> str:
    """Write the problem with a parameter, and its remedy."""
    # A schedule is a plain dataclass, for which pydantic has another word.
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{path} must be a parameter of this project, got an unknown name; {suggestion(path, parameters)}"
    if problem["type"] == "missing":
        return f"{path} must be given, got nothing; add it to the parameters"
    text = problem["message"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return text if path in text else f"{path}: {text}"
    if problem["type"] in ("tuple_type", "list_type"):
        inside = problem["value"].strip("'") if problem["kind"] in SCALARS else "one, another"
        return f"{path} must be a list, got {problem['value']}; write [{inside}], further values after commas"
    if problem["type"] == "too_short" and (least := re.search(r"at least (\d+) item", text)):
        return f"{path} must have at least {least[1]}, got {problem['value']}; name what it should hold"
    return value_sentence(path, problem["type"], text, value=problem["value"])


def without_tags(path: Iterable[str], values: Any) -> Iterator[str]:
    """Yield the parts of a path, without the kind that pydantic adds after a section of several kinds."""
    for part in path:
        is_section = isinstance(values, Mapping)
        if is_section and part not in values and part in values.values():
            continue
        values = values.get(part) if is_section else None
        yield part


def value_sentence(path: str, kind: str, text: str, *, value: str) -> str:
    """Write the allowed values for a wrong value.

    Args:
        path: path of the parameter.
        kind: pydantic's name of the problem.
        text: pydantic's message.
        value: the value in its shown form.
    """
    if kind in WANTED:
        return f"{path} must be {WANTED[kind]}, got {value}; correct it"
    if kind in SECTION_TYPES:
        wanted = SCHEDULE if text.endswith("Schedule") else "a section with names and values"
        remedy = OF_AN_OLDER_VERSION if is_old(path) else "write it so"
        return f"{path} must be {wanted}, got {value}; {remedy}"
    if tagged := re.match(r"Input tag '(.*)' found using '(\w+)' .*expected tags: (.*)", text):
        tag, name, quoted = tagged.groups()
        known = quoted.replace("'", "")
        return f"{path}.{name} must be one of {known}, got {tag}; correct it"
    if untagged := re.match(r"Unable to extract tag using discriminator '(\w+)'", text):
        return f"{path}.{untagged[1]} must be given, got nothing; add it to the parameters"
    text = re.sub(r"^Input should be", "must be", text)
    return f"{path} {text[:1].lower() + text[1:]}, got {value}; correct it"


def suggestion(path: str, parameters: Mapping[str, Any]) -> str:
    """Suggest the parameter's likely name, or to remove it."""
    *parents, name = path.split(".")
    if is_old(path):
        return OF_AN_OLDER_VERSION
    siblings: Any = parameters
    for parent in parents:
        siblings = siblings.get(parent, {}) if isinstance(siblings, Mapping) else {}
    names = (
        [str(other) for other in siblings if str(other) != name]
        if isinstance(siblings, Mapping)
        else []
    )
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {'.'.join([*parents, close[0]])}?"
    if "algorithm" in parents:  # a part of another kind than that of the base
        return "remove it, with null where the base has it, or correct its name"
    return "remove it or correct its name"
