"""Combine the prediction rows of a core's frames into one row, and name the columns that say what is true of a core."""

import numpy as np
import pandas as pd

from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.data.aggregate_params import AggregateParams
from grpo_pipeline.tasks.attention.data.table_columns import (
    CLASS_COLUMN,
    FINDINGS_COLUMN,
    FRAME_COLUMN,
    READER_COLUMN,
)
from grpo_pipeline.tasks.attention.evaluation.class_metrics import is_of_classes

FACTS = ("core_id", "patient_id", "center", "label", "involvement", "grade_group")
CLASS_COLUMNS = (CLASS_COLUMN, FINDINGS_COLUMN)


def fact_columns(table: pd.DataFrame) -> list[str]:
    """Return the columns of the examples' table that prediction rows repeat: what is true of a core, whatever is predicted."""
    return [
        *FACTS,
        *(name for name in (FRAME_COLUMN, READER_COLUMN, *CLASS_COLUMNS) if name in table),
    ]


OVER_FRAMES, OVER_CORES = "over_frames", "over_cores"
"""Columns of prediction rows: how the probabilities of frames become that of a core, and those of cores that of a patient."""
SCORES = ("prob", "heatmap_prob", "heatmap_top")
"""Columns that become one of the core by its rule; of other numbers the mean over the frames is taken."""


def rule_columns(table: pd.DataFrame, rules: AggregateParams) -> dict[str, str]:
    """Return the columns that tell prediction rows how they are combined; none where there is nothing out of the ordinary."""
    if FRAME_COLUMN in table:
        return {OVER_FRAMES: rules.core, OVER_CORES: rules.patient}
    return {} if rules.patient == AggregateParams().patient else {OVER_CORES: rules.patient}


def combine_frames(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per rule and core: what is said of its frames, combined; rows without frames stay as they are.

    Scores become one by the rule that the rows name in ``over_frames``; a probability that is NaN stays NaN. A reader's score is
    the highest of the frames, as a case is called by its most suspicious view. Other numbers become their mean over the frames
    that have one (by the rule ``max`` those of classes are the highest frame's, and a finding's is its own highest), and facts of
    the core are those of its first.
    """
    if FRAME_COLUMN not in rows:
        return rows
    how = str(rows[OVER_FRAMES].iloc[0])
    groups = rows.groupby(["rule", "core_id"], sort=False)
    said = [
        name
        for name in rows.select_dtypes("number").columns
        if name not in (*FACTS, READER_COLUMN, *CLASS_COLUMNS)
    ]
    of_classes = [name for name in said if is_of_classes(name)]
    scores = (*SCORES, *of_classes) if FINDINGS_COLUMN in rows else SCORES
    combined = groups.first().drop(columns=[FRAME_COLUMN, *said])
    for name in said:
        combined[name] = groups[name].agg(how if name in scores else "mean")
    if how == "max" and of_classes and FINDINGS_COLUMN not in rows:
        # Those of the frame whose probability counts, so that they still add up to 1.
        ordered = rows.sort_values("prob", kind="stable", na_position="first")
        highest = ordered.drop_duplicates(["rule", "core_id"], keep="last")
        combined[of_classes] = highest.set_index(["rule", "core_id"])[of_classes]
    combined["prob"] = combined["prob"].mask(groups["prob"].count() < groups["prob"].size())
    if READER_COLUMN in rows:
        combined[READER_COLUMN] = groups[READER_COLUMN].max()
    return combined.assign(frames=groups.size()).reset_index()


def turn_about(data: AttentionData, rows: np.ndarray) -> np.ndarray:
    """Return the rows in an order in which cores take turns: the first frame of each, then the second ones, and so on.

    Neighbours are different cores then, wherever more than one has frames left. Without frames the order stays.
    """
    table = data.examples.table.iloc[rows]
    if FRAME_COLUMN not in table:
        return rows
    turn = table.groupby("core_id").cumcount().to_numpy()
    return rows[np.argsort(turn, kind="stable")]
