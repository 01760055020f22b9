"""Call a reward function with samples and the texts beside them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_pipeline.rewards.functions import RewardFunction, load_function
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.signature import (
    COLUMNS,
    COMPLETIONS,
    PROMPTS,
    REFERENCES,
    call_of,
    parameters_of,
)

# (text, texts beside it) of each sample; see texts_beside.
Samples = Sequence[tuple[str, Sequence[str]]]
NO_CELLS = "{}"


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
