"""Divide the examples into train, val and test by persona, independent of the order of the rows."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.tasks.dialogue.data.drafts import SPLITS
from grpo_pipeline.tasks.dialogue.data.params import DialogueSplitParams

logger = logging.getLogger(__name__)
LEFT_OUT = "left_out"
Splits = dict[str, list[str]]


def split_personas(checked: pd.DataFrame, params: DialogueSplitParams) -> Splits:
    """Divide the examples into splits; returns sorted example ids. A persona (``subject_id``) is never divided.

    Where the rows name the splits they are taken as they are; otherwise the personas are drawn. Where rows name several, as
    ``train+test``, their personas are drawn among these alone. An example whose other speaker (``partner_id``) was drawn into
    another split is in none: it stands under ``left_out``, so that no conversation is in two.

    Raises:
        ValueError: if there are fewer personas than splits, or a split holds nothing.
    """
    is_named, split_of = bool((checked["split"] != "").any()), checked["split"].copy()
    for among in sorted({*checked["split"]} - {*SPLITS}):
        rows = checked[checked["split"] == among]
        drawn = draw_personas(
            sorted({*rows["subject_id"], *rows["partner_id"]} - {""}),
            shares(vars(params.fractions), among),
            seed=params.seed,
        )
        own, partners = rows["subject_id"].map(drawn), rows["partner_id"].map(drawn)
        split_of[rows.index] = own.where((rows["partner_id"] == "") | (own == partners), LEFT_OUT)
        if among:
            found = Counter(drawn.values())
            logger.warning(
                "the subjects of the part train are drawn, because other splits have no part of their own: %s",
                ", ".join(f"{found[name]} for {name}" for name in among.split("+")),
            )
    splits = {
        name: sorted(checked.loc[split_of == name, "example_id"]) for name in (*SPLITS, LEFT_OUT)
    }
    for name in SPLITS:
        if not splits[name]:
            remedy = (
                "name it in some rows"
                if is_named
                else "change dialogue.split.fractions, or add examples"
            )
            raise ValueError(f"split {name!r} must hold examples, got none; {remedy}")
    return splits


def shares(fractions: Mapping[str, float], among: str) -> Mapping[str, float]:
    """Share out 1 among the splits that + joins, in proportion to their fractions; without a name all fractions stay."""
    if not among:
        return fractions
    names = among.split("+")
    total = sum(fractions[name] for name in names)
    return {name: fractions[name] / total if name in names else 0.0 for name in SPLITS}


def draw_personas(
    personas: Sequence[str], fractions: Mapping[str, float], *, seed: int
) -> dict[str, str]:
    """Draw the split of each persona: the personas in random order, cut at the shares.

        split s holds the places round(n * sum_{t < s} f[t]) to round(n * sum_{t <= s} f[t])

    Raises:
        ValueError: if there are fewer personas than splits.
    """
    if len(personas) < len(SPLITS):
        raise ValueError(
            f"the data must hold at least {len(SPLITS)} personas, or groups of rows or of those who talk with each other, got "
            f"{len(personas)}; none is ever divided: add some, or, where source: conversations has groups, set "
            "dialogue.data.source.partners: apart"
        )
    order = numpy_generator(seed, Stream.SPLIT).permutation(len(personas))
    ends = np.rint(len(personas) * np.cumsum([fractions[name] for name in SPLITS])).astype(int)
    part = np.searchsorted(ends, np.arange(len(personas)), side="right")
    return {personas[persona]: SPLITS[place] for persona, place in zip(order, part, strict=True)}
