"""Measure points and heatmaps against lesions, and how much the points move the probability."""

import numpy as np
import pandas as pd

from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.columns import column, has_value
from grpo_pipeline.statistics.mean_metric import mean_metric
from grpo_pipeline.statistics.metric import NOT_NEGATIVE, SHARE, Metric

OUTLINE = " (reads the test outline)"


def attention_metrics() -> dict[str, Metric]:
    """Return the metrics of points and heatmaps by name."""
    no_lesion = "needs a core with a lesion outline, and points or a heatmap of this rule"
    return {
        "lesion_hit": mean_metric(
            "lesion_hit",
            title=f"Share of points in the lesion{OUTLINE}",
            better="higher",
            reason=no_lesion,
            bounds=SHARE,
        ),
        "lesion_hit_ratio": Metric(
            title=f"Points in the lesion, ratio to uniform{OUTLINE}",
            better="higher",
            reason="needs a core whose lesion outline meets the region, and points of this rule",
            usable=lambda rows: has_value("lesion_hit", rows) & has_value("lesion_coverage", rows),
            compute=lambda rows, weights: weighted.mean_ratio(
                column(rows, "lesion_hit"), column(rows, "lesion_coverage"), weights
            ),
            mass=lambda rows, weights: weights @ column(rows, "lesion_coverage"),
            bounds=NOT_NEGATIVE,
        ),
        "pointing_hit": mean_metric(
            "pointing_hit",
            title=f"Heatmaps whose highest cell is in the lesion{OUTLINE}",
            better="higher",
            reason=no_lesion,
            bounds=SHARE,
        ),
        # A fact of the training and no sample of cores: it has no interval, and so no bounds.
        "outlined_share": mean_metric(
            "outlined_share",
            title="Training cores whose lesion outline was shown to the losses",
            better="none",
            reason="needs a training core",
        ),
        "points_used": mean_metric(
            "points_used",
            title="Points in a set",
            better="none",
            reason="needs at least one core",
            bounds=NOT_NEGATIVE,
        ),
        "lesion_distance_mm": mean_metric(
            "lesion_distance_mm",
            title=f"Distance of the points to the lesion, mm{OUTLINE}",
            better="lower",
            reason="needs a core with a lesion outline and a known pixel spacing",
            bounds=NOT_NEGATIVE,
        ),
        "prompt_sensitivity_samples": mean_metric(
            "prob_std",
            title="Spread of the probability over point sets",
            better="none",
            reason="needs several point sets per core",
            bounds=SHARE,
        ),
        "prompt_sensitivity_images": mean_metric(
            "prob_shift",
            title="Change of the probability with another core's points",
            better="none",
            reason="is measured for the rule policy and needs the rule shuffled",
            bounds=SHARE,
        ),
    }


def add_prob_shift(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``prob_shift`` = |prob with the policy's own points - prob with another core's points| to the policy's rows."""
    shuffled = rows.loc[rows["rule"] == "shuffled"].set_index("core_id")["prob"]
    shift = (rows["prob"] - rows["core_id"].map(shuffled)).abs()
    return rows.assign(prob_shift=shift.where(rows["rule"] == "policy").astype(np.float64))
