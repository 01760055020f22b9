"""Compare probabilities with labels."""

from functools import partial

import numpy as np
import pandas as pd

from grpo_pipeline.statistics import linear_resampling, weighted
from grpo_pipeline.statistics.columns import column
from grpo_pipeline.statistics.metric import SHARE, Metric
from grpo_pipeline.tasks.attention.evaluation.metric_options import MetricOptions
from grpo_pipeline.tasks.attention.evaluation.targets import has_prob, label_target


def probability_metrics(options: MetricOptions) -> dict[str, Metric]:
    """Return the metrics of the probabilities themselves by name."""
    no_rows = "needs at least one core"
    return {
        "brier": Metric(
            title="Brier score",
            better="lower",
            reason=no_rows,
            usable=has_prob,
            compute=lambda rows, weights: weighted.mean(
                (column(rows, "prob") - label_target(rows)) ** 2, weights
            ),
            bounds=SHARE,
        ),
        "ece": Metric(
            title=f"Calibration error, {options.calibration_bins} bins",
            better="lower",
            reason=no_rows,
            usable=has_prob,
            compute=partial(_calibration_error, bins=options.calibration_bins),
            bounds=SHARE,
        ),
    }


def _calibration_error(rows: pd.DataFrame, weights: np.ndarray, *, bins: int) -> np.ndarray:
    """Return the calibration error, made to vary as the jackknife over rows says, [B]: it is larger in a resample."""
    probs, is_positive = column(rows, "prob"), label_target(rows) == 1
    kinds = np.where(is_positive, 2.0 + probs, probs)  # in [2, 3] and [0, 1]
    return linear_resampling.linear(
        partial(weighted.calibration_error, probs, is_positive, bins=bins), kinds, weights
    )
