"""Find a reward function by its import path, and apply the rule for samples that it cannot score.

A reward function has the signature ``(subjects: Sequence[str], references: Sequence[Sequence[str]]) -> Sequence[float]`` and may
take keyword options. Parameters after the first that are called ``prompts``, ``answers``, ``references`` or ``columns`` get
these by name: ``(replies, *, prompts, answers, columns)``. A function with a parameter ``completions`` gets everything by name,
as in TRL: ``(prompts, completions, **kwargs)``. One that is ``async`` is awaited, a chunk at a time.

It must be a pure function of each sample and what it reads beside it: calls are cut into chunks, repeated samples are measured
once, and values are cached.
"""

import hashlib
import importlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

RewardFunction = Callable[..., Sequence[float]]
Function = TypeVar("Function", bound=Callable[..., Any])
# (text, texts beside it) of each sample; see texts_beside.
Samples = Sequence[tuple[str, Sequence[str]]]
# The value of a sample, or a sentence with the reason why it has none.
Outcome = float | str
MAX_CAUSE = 300
OURS = "grpo_pipeline."
COMPLETIONS, PROMPTS, COLUMNS = "completions", "prompts", "columns"
REFERENCES = ("references", "answers")
BESIDE = (PROMPTS, *REFERENCES, COLUMNS)
"""What a function may read beside its samples, by name."""
NO_CELLS = "{}"
NOT_FIRST = (
    "prompts",
    "prompt",
    "questions",
    "references",
    "answers",
    "targets",
    "labels",
    "ground_truth",
    "solution",
    "columns",
)
NOT_SECOND = ("subjects", "replies", "responses", "texts", "outputs")
"""Names of parameters that say something else than what stands in their place."""


class RewardPoolError(RuntimeError):
    """An error that prevents the measurement of rewards for every sample."""


@dataclass(frozen=True)
class Measure:
    """A reward function by its path "package.module:function", with its keyword options (JSON).

    Attributes:
        function: its path.
        options: its keyword options.
        may_hang: whether an option of the user's, such as a regular expression, decides how long it takes.
    """

    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    may_hang: bool = False

    @property
    def is_built_in(self) -> bool:
        """Check whether the function belongs to the project: a pure one, which never hangs by itself."""
        return self.function.startswith(OURS) and not self.may_hang

    @cached_property
    def digest(self) -> str:
        """Compute the cache key of values: path, options, and the present text of the function's own module.

        Of a reward of the project, the modules of its task that it imports count, too: they are part of what it computes.

        Raises:
            ValueError: as ``load_function``.
        """
        name = getattr(load_function(self.function), "__module__", None) or ""
        task = ".".join(name.split(".")[:3])  # grpo_pipeline.tasks.<task>
        is_ours = self.function.startswith(OURS)
        names = _imported(name, within=f"{task}.") if is_ours else {name}
        texts = [
            Path(file).read_bytes()
            for one in sorted(names)
            if (file := getattr(sys.modules.get(one), "__file__", None))
        ]
        return hashlib.sha256(
            json.dumps([self.function, dict(self.options)], sort_keys=True).encode()
            + b"".join(texts)
        ).hexdigest()


def _imported(name: str, *, within: str) -> set[str]:
    """Find a module and all modules of a package that it imports from, directly or indirectly."""
    found, left = {name}, [name]
    while left:
        values = vars(sys.modules[left.pop()]).values() if left[-1] in sys.modules else ()
        used = {
            getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in values
        }
        new = {one for one in used if isinstance(one, str) and one.startswith(within)} - found
        found |= new
        left += sorted(new)
    return found


def parameters_of(function: RewardFunction) -> tuple[tuple[str, ...], bool]:
    """List a function's parameters, and whether it takes any keyword; empty if Python cannot inspect it."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return (), False
    rest = any(one.kind is one.VAR_KEYWORD for one in found.values())
    named = (
        one.name for one in found.values() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    )
    return tuple(named), rest


class Call(NamedTuple):
    """Texts beside its samples that a function gets: references in the second place or not, and those of ``BESIDE`` by name."""

    has_references: bool
    by_name: tuple[str, ...]


def call_of(function: RewardFunction, options: Mapping[str, Any]) -> Call:
    """Find what a function reads by its signature; an option comes before what has the same name."""
    names, takes_all = parameters_of(function)
    if COMPLETIONS in names:
        read = {*names, PROMPTS, *REFERENCES} if takes_all else {*names}
        return Call(False, tuple(name for name in BESIDE if name in read and name not in options))
    if not names:  # Python cannot inspect it, or its parameters have no names
        return Call(True, ())
    found = [*inspect.signature(function).parameters.values()]
    rest = found if found[0].kind is inspect.Parameter.VAR_POSITIONAL else found[1:]
    places = [one.name for one in rest if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)]
    is_second = bool(places) and places[0] not in (PROMPTS, COLUMNS, *options)
    # The first parameter holds the samples, whatever its name.
    read = {one.name for one in rest} - {*(places[:1] if is_second else ())} - {*options}
    return Call(is_second, tuple(name for name in BESIDE if name in read))


def texts_beside(
    measure: Measure,
    references: Sequence[Sequence[str]],
    prompts: Sequence[str] | None,
    cells: Sequence[str] | None = None,
) -> Sequence[Sequence[str]]:
    """Collect the texts beside each sample: the prompt and the cells if the function reads them, then its references.

    Args:
        measure: the function.
        references: N lists of texts.
        prompts: N texts; None for empty ones.
        cells: N JSON objects, column -> value; None for empty ones.
    """
    try:
        read = call_of(load_function(measure.function), measure.options).by_name
    except ValueError:  # the process that is to measure says why it cannot be imported
        read = ()
    first: list[Sequence[str]] = []
    if PROMPTS in read:
        first.append([""] * len(references) if prompts is None else prompts)
    if COLUMNS in read:
        first.append([NO_CELLS] * len(references) if cells is None else cells)
    if not first:
        return references
    return [(*row[:-1], *row[-1]) for row in zip(*first, references, strict=True)]


def call_function(
    function: RewardFunction,
    options: Mapping[str, Any],
    subjects: Sequence[str],
    texts: Sequence[Sequence[str]],
) -> Sequence[float]:
    """Call a reward with samples and the texts of ``texts_beside``."""
    has_references, read = call_of(function, options)
    before = (PROMPTS in read) + (COLUMNS in read)
    references = [list(row[before:]) for row in texts]
    beside: dict[str, Any] = dict.fromkeys(REFERENCES, references)
    if PROMPTS in read:
        beside[PROMPTS] = [row[0] for row in texts]
    if COLUMNS in read:
        beside[COLUMNS] = _columns([row[before - 1] for row in texts])
    given = {name: beside[name] for name in read} | dict(options)
    if COMPLETIONS in parameters_of(function)[0]:
        return function(**given | {COMPLETIONS: list(subjects)})
    if has_references:
        return function(list(subjects), references, **given)
    return function(list(subjects), **given)


def _columns(cells: Sequence[str]) -> dict[str, list[Any]]:
    """Read N JSON objects as columns: name -> N values, None where a row lacks the name."""
    rows = [json.loads(row) for row in cells]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def load_function(path: str) -> RewardFunction:
    """Import the function that "package.module:function" names.

    Raises:
        ValueError: if the path is not of that form, or names nothing importable and callable.
    """
    module_name, colon, name = path.partition(":")
    if not (
        colon and all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")])
    ):
        raise ValueError(
            f"a reward function must be named package.module:function, got {path!r}; correct the path"
        )
    if module_name == "__main__":
        raise ValueError(
            f"a reward function must be in an importable module, got {path!r}; move it into a file of its own"
        )
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"the reward function {path!r} must be importable, got {_name(error)}; correct the path"
        ) from error
    if not callable(found):
        raise ValueError(
            f"the reward function {path!r} must be callable, got a {type(found).__name__}; name a function"
        )
    function: RewardFunction = found
    return function


def prepared_by(prepare: Callable[[], object]) -> Callable[[Function], Function]:
    """Mark a reward function with a function that does its imports and reads, called when a process loads it.

    Imports at the first call would use up the time limit of a chunk, and might fail on a busy machine.
    """

    def mark(function: Function) -> Function:
        function.__dict__["prepare"] = prepare
        return function

    return mark


def prepare(path: str) -> None:
    """Import a function and run its preparation, before its first chunk.

    Raises:
        ValueError: as ``load_function``, or if the preparation raises.
    """
    function = load_function(path)
    try:
        getattr(function, "prepare", _nothing)()
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"the reward function {path!r} must be able to prepare, got {_name(error)}; correct it"
        ) from error


def _nothing() -> None:
    """Do nothing, for a function without preparation."""


def check_measure(measure: Measure) -> None:
    """Raise unless the function can be imported and called with samples, what it reads beside them and the options.

    Raises:
        ValueError: as ``load_function``; for a function that takes other arguments; for options that are
            not JSON.
    """
    function = load_function(measure.function)
    try:
        json.dumps(dict(measure.options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the options of {measure.function!r} must be JSON values, got {_name(error)}; correct them"
        ) from error
    check_names(measure, function)
    try:
        if COMPLETIONS not in parameters_of(function)[0]:
            call = call_of(function, measure.options)
            named = dict.fromkeys(call.by_name) | dict(measure.options)
            inspect.signature(function).bind(*([], []) if call.has_references else [[]], **named)
    except (TypeError, ValueError) as error:
        wanted = ", ".join(["subjects", "references", *(f"{name}=…" for name in measure.options)])
        raise ValueError(
            f"the reward function {measure.function!r} must take ({wanted}), got {_name(error)}; change its signature: it may "
            f"also name {list(BESIDE)}, and a column of the data is columns['…']"
        ) from error


def check_names(measure: Measure, function: RewardFunction) -> None:
    """Refuse a function whose parameter names differ from those of the values that it would get.

    Raises:
        ValueError: a parameter is unknown. The sentence names it and the known names.
    """
    names, _ = parameters_of(function)
    if COMPLETIONS in names:
        known = (PROMPTS, COMPLETIONS, *REFERENCES, COLUMNS, *measure.options)
        needed = inspect.signature(function).parameters.values()
        missing = [
            one.name
            for one in needed
            if one.default is one.empty
            and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
            and (one.name not in known or one.kind is one.POSITIONAL_ONLY)
        ]
        if missing:
            raise ValueError(
                f"the reward function {measure.function!r} is called by name and must take its parameters from {list(known)}, "
                f"got {missing[0]!r}; rename it, give it as an option, or read a column of the data as columns['…']"
            )
        return
    for place, (name, wrong) in enumerate(zip(names, (NOT_FIRST, NOT_SECOND), strict=False)):
        if name in wrong:
            raise ValueError(
                f"the reward function {measure.function!r} must take (subjects, references), the samples first, got {name!r} as "
                f"parameter {place + 1}; change their order, or call the samples 'completions' to have all called by name"
            )


def measure_chunk(
    function: RewardFunction,
    options: Mapping[str, Any],
    subjects: Sequence[str],
    references: Sequence[Sequence[str]],
) -> list[Outcome]:
    """Call the function on a chunk; returns an outcome per sample.

    A call that raises, or returns another number of values, is repeated sample by sample, so that a bad sample does not affect
    its neighbours. A value that is NaN, infinite or no number counts as no score.
    """
    try:
        returned: Any = call_function(function, options, subjects, references)
        if inspect.iscoroutine(returned):
            import asyncio  # takes longer than all other imports of a process that measures

            returned = asyncio.run(returned)
        if not isinstance(returned, Iterable):
            raise TypeError(f"it must return one value per sample, got {type(returned).__name__}")
        values = list(returned)
        if len(values) != len(subjects):
            raise ValueError(
                f"it must return one value per sample, got {len(values)} for {len(subjects)}"
            )
        return [_outcome(value) for value in values]
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's reward raises belongs to its samples
        if len(subjects) == 1:
            return [f"it raised {_name(error)}"]
    pairs = zip(subjects, references, strict=True)
    return [measure_chunk(function, options, [subject], [texts])[0] for subject, texts in pairs]


def _outcome(value: Any) -> Outcome:
    if isinstance(value, str):
        return f"it must return numbers, got the text {value[:MAX_CAUSE]!r}"
    number = float(value)
    return number if math.isfinite(number) else f"it returned {number}, which is no score"


def _name(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_CAUSE]


def shorten(text: str, *, limit: int = 80) -> str:
    """Quote a text for a sentence, shortened if it is long."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}… ({len(text)} characters)"
