"""Rank cores or patients by a score against a 0/1 target."""

from functools import partial

import numpy as np
import pandas as pd

from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.columns import column, has_value
from grpo_pipeline.statistics.metric import SHARE, Metric
from grpo_pipeline.statistics.weighted import Mass, Ranking
from grpo_pipeline.tasks.attention.evaluation.frames import OVER_CORES
from grpo_pipeline.tasks.attention.evaluation.metric_options import MetricOptions
from grpo_pipeline.tasks.attention.evaluation.targets import (
    Target,
    grade_target,
    has_prob,
    involvement_target,
    label_target,
)

BOTH_CLASSES = "needs at least one positive and one negative core"


def ranking_metric(
    statistic: Ranking,
    target: Target,
    *,
    title: str,
    reason: str,
    score: str = "prob",
    mass: Mass = weighted.count_pairs,
) -> Metric:
    """Build a metric that ranks rows by a score against a 0/1 target; rows without score or target are left out."""
    return Metric(
        title=title,
        better="higher",
        reason=reason,
        usable=lambda rows: has_value(score, rows) & np.isfinite(target(rows)),
        compute=lambda rows, weights: statistic(column(rows, score), target(rows) == 1, weights),
        mass=lambda rows, weights: mass(target(rows) == 1, weights),
        bounds=SHARE,
        sides=lambda rows: target(rows) == 1,
    )


def ranking_metrics(options: MetricOptions) -> dict[str, Metric]:
    """Return the metrics of a ranking by name."""
    at_specificity = weighted.sensitivity_at_specificity
    high = partial(involvement_target, threshold=options.high_involvement)
    auroc = partial(ranking_metric, weighted.auroc)
    return {
        "auroc": auroc(label_target, title="AUROC", reason=BOTH_CLASSES),
        "average_precision": ranking_metric(
            weighted.average_precision,
            label_target,
            title="Average precision",
            reason=BOTH_CLASSES,
            mass=weighted.count_positives,
        ),
        "sensitivity_at_80_specificity": ranking_metric(
            partial(at_specificity, level=0.8),
            label_target,
            title="Sensitivity at 80% specificity",
            reason=BOTH_CLASSES,
            mass=weighted.count_positives,
        ),
        "sensitivity_at_60_specificity": ranking_metric(
            partial(at_specificity, level=0.6),
            label_target,
            title="Sensitivity at 60% specificity",
            reason=BOTH_CLASSES,
            mass=weighted.count_positives,
        ),
        "auroc_high_involvement": auroc(
            high,
            title=f"AUROC, involvement at least {options.high_involvement:.0%}",
            reason=f"needs a negative core and a positive one with a known involvement of at least {options.high_involvement:g}",
        ),
        "auroc_patient": Metric(
            title="AUROC of patients",
            better="higher",
            reason="needs at least one patient with a positive core and one without",
            usable=has_prob,
            # Its probability against any positive core; a patient weighs as its cores.
            compute=lambda rows, weights: weighted.auroc(*_patients(rows, weights)),
            # Pairs of a patient with cancer and one without.
            mass=lambda rows, weights: weighted.count_pairs(*_patients(rows, weights)[1:]),
            size=lambda rows: rows["patient_id"].nunique(),
            bounds=SHARE,
            sides=lambda rows: rows.groupby("patient_id")["label"].transform("max").to_numpy(),
        ),
        "auroc_gg2": auroc(
            partial(grade_target, grade=2),
            title="AUROC, grade group at least 2",
            reason="needs a core of grade group 2 or higher and one that is not",
        ),
        "auroc_gg3": auroc(
            partial(grade_target, grade=3),
            title="AUROC, grade group at least 3",
            reason="needs a core of grade group 3 or higher and one that is not",
        ),
        "heatmap_auroc": auroc(
            label_target,
            score="heatmap_prob",
            title="AUROC of the heatmap in the bag",
            reason=BOTH_CLASSES,
        ),
        "heatmap_top_auroc": auroc(
            label_target,
            score="heatmap_top",
            title="AUROC of the heatmap's highest cells",
            reason=BOTH_CLASSES,
        ),
    }


def _patients(rows: pd.DataFrame, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each patient's probability [p], whether any of its cores is positive [p], and its weights [B, p].

    The probability is the highest of its cores, or their mean where the rows say so.
    """
    groups = rows.groupby("patient_id", sort=True)
    codes = groups.ngroup().to_numpy()
    _, first_row = np.unique(codes, return_index=True)
    if not np.array_equal(weights[:, first_row][:, codes], weights):
        raise ValueError(
            "the weights of one patient's cores must be equal, got different ones; resample whole patients"
        )
    return (
        groups["prob"].agg(rows[OVER_CORES].iloc[0] if OVER_CORES in rows else "max").to_numpy(),
        groups["label"].max().to_numpy() == 1,
        weights[:, first_row],
    )
