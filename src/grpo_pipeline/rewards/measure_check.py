"""Refuse a reward function that cannot be called with its samples, what it reads beside them and its options."""

import inspect
import json

from grpo_pipeline.rewards.functions import RewardFunction, load_function
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.quoting import quote_error
from grpo_pipeline.rewards.signature import (
    BESIDE,
    COLUMNS,
    COMPLETIONS,
    PROMPTS,
    REFERENCES,
    call_of,
    parameters_of,
)

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
            f"the options of {measure.function!r} must be JSON values, got {quote_error(error)}; correct them"
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
            f"the reward function {measure.function!r} must take ({wanted}), got {quote_error(error)}; change its signature: "
            f"it may also name {list(BESIDE)}, and a column of the data is columns['…']"
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
