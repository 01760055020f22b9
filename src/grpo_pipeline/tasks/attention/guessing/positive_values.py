"""Choose the values of a label that mean positive."""

import re
from collections.abc import Sequence

from grpo_pipeline.tasks.new_data import Hints, UnclearDataError

POSITIVE = (
    "1",
    "yes",
    "true",
    "positive",
    "pos",
    "malignant",
    "cancer",
    "tumor",
    "tumour",
    "carcinoma",
    "adenocarcinoma",
    "abnormal",
    "disease",
    "diseased",
    "lesion",
)
NEGATIONS = ("no", "non", "not", "without", "negative", "benign")
MOST_CLASSES = 20


def positive_values(values: Sequence[str], hints: Hints) -> list[str]:
    """Choose the values that mean positive: the user's, or those that sound so; refuses all of them, and none."""
    if unknown := sorted({*hints.positive} - {*values}):
        raise UnclearDataError(
            f"--positive must be values of the label, {', '.join(values)}, got {', '.join(unknown)}"
        )
    found = list(hints.positive) or [value for value in values if _sounds_positive(value)]
    if not found or len(found) == len(values):
        raise UnclearDataError(
            f"the label must have a value that means positive and one that does not, got {', '.join(values[:MOST_CLASSES])}; "
            "name what is positive: --positive <value>, once for each"
        )
    return found


def _sounds_positive(value: str) -> bool:
    words = {*re.findall(r"[a-z0-9]+", value.lower())}
    return bool(words & {*POSITIVE}) and not words & {*NEGATIONS}
