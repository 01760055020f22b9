"""The metrics of the attention task, each computed from the prediction rows of one arm and one point rule.

Definitions, directions and the rule for "undefined" are in docs/metrics.md.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.statistics import linear_resampling, weighted
from grpo_pipeline.statistics.columns import column, has_value
from grpo_pipeline.statistics.mean_metric import mean_metric
from grpo_pipeline.statistics.metric import NOT_NEGATIVE, SHARE, Bar, Metric, MetricSuite, Unit
from grpo_pipeline.statistics.weighted import Mass, Ranking
from grpo_pipeline.tasks.attention.data.params import CLASS_COLUMN, FINDINGS_COLUMN, READER_COLUMN
from grpo_pipeline.tasks.attention.evaluation.class_metrics import (
    CLASS_AUROC,
    CLASS_PROB,
    EXPECTED,
    FINDING_AUROC,
    KAPPA,
    class_metrics,
    class_names,
    finding_metrics,
)
from grpo_pipeline.tasks.attention.evaluation.frames import OVER_CORES, combine_frames
from grpo_pipeline.tasks.attention.evaluation.summary import summary

REQUIRED = (
    *("core_id", "patient_id", "label", "involvement", "grade_group", "rule"),
    *(
        "prob",
        "heatmap_prob",
        "prob_std",
        "reward",
        "reward_class",
        "reward_heatmap",
        "lesion_hit",
        "lesion_coverage",
    ),
    "points_used",
)


RULES = (
    *(
        "policy",
        "start",
        "greedy",
        "uniform",
        "centre",
        "fixed",
        "constant",
        "blobs",
        "none",
        "oracle",
    ),
    *("shuffled", "pooled", "heatmap", "picture", "texture", "cnn", "attention_cnn", "unet"),
)


OUTLINE = " (reads the test outline)"


BOTH_CLASSES = "needs at least one positive and one negative core"


Target = Callable[[pd.DataFrame], np.ndarray]


class MetricOptions(BaseModel):
    """The constants that the definitions leave open."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    calibration_bins: int = Field(
        default=10, ge=2, description="equal-width bins of the calibration error"
    )
    high_involvement: float = Field(
        default=0.4, gt=0, le=1, description="least involvement of a high-involvement positive"
    )


def label_target(rows: pd.DataFrame) -> np.ndarray:
    """Return 1 for a positive core and 0 for a negative one, [n]."""
    return column(rows, "label")


def involvement_target(rows: pd.DataFrame, *, threshold: float) -> np.ndarray:
    """Return 1 for positives with involvement >= threshold, 0 for all negatives, NaN (left out) for other positives."""
    is_high = column(rows, "involvement") >= threshold
    return np.where(label_target(rows) == 0, 0.0, np.where(is_high, 1.0, np.nan))


def grade_target(rows: pd.DataFrame, *, grade: int) -> np.ndarray:
    """Return 1 for positives of at least this grade group, 0 for the rest, NaN (left out) for ungraded positives."""
    group = column(rows, "grade_group")
    graded = np.where(np.isnan(group), np.nan, (group >= grade).astype(np.float64))
    return np.where(label_target(rows) == 0, 0.0, graded)


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


def _has_prob(rows: pd.DataFrame) -> np.ndarray:
    return has_value("prob", rows)


def build_metrics(options: MetricOptions) -> dict[str, Metric]:
    """Return every metric of the task by name, in the order of the report."""
    return (
        _ranking_metrics(options)
        | _probability_metrics(options)
        | _attention_metrics()
        | _reward_metrics()
    )


def _ranking_metrics(options: MetricOptions) -> dict[str, Metric]:
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
            usable=_has_prob,
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


def _probability_metrics(options: MetricOptions) -> dict[str, Metric]:
    no_rows = "needs at least one core"
    return {
        "brier": Metric(
            title="Brier score",
            better="lower",
            reason=no_rows,
            usable=_has_prob,
            compute=lambda rows, weights: weighted.mean(
                (column(rows, "prob") - label_target(rows)) ** 2, weights
            ),
            bounds=SHARE,
        ),
        "ece": Metric(
            title=f"Calibration error, {options.calibration_bins} bins",
            better="lower",
            reason=no_rows,
            usable=_has_prob,
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


def _attention_metrics() -> dict[str, Metric]:
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


def _reward_metrics() -> dict[str, Metric]:
    mean = partial(mean_metric, better="higher", reason="needs at least one core with a reward")
    return {
        "reward": mean("reward", title="Reward"),
        "reward_class": mean("reward_class", title="Reward, class component"),
        "reward_heatmap": mean("reward_heatmap", title="Reward, heatmap component"),
    }


def add_prob_shift(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``prob_shift`` = |prob with the policy's own points - prob with another core's points| to the policy's rows."""
    shuffled = rows.loc[rows["rule"] == "shuffled"].set_index("core_id")["prob"]
    shift = (rows["prob"] - rows["core_id"].map(shuffled)).abs()
    return rows.assign(prob_shift=shift.where(rows["rule"] == "policy").astype(np.float64))


def reader_metrics() -> dict[str, Metric]:
    """Return what compares with a reader's score, on the cores that have one: its AUROC, the model's there, and the difference.

    Both are computed on the same resamples of whole patients, so that the interval of the difference is a paired one.
    """
    reason = "needs a positive and a negative core with a reader's score"
    reader = ranking_metric(
        weighted.auroc,
        label_target,
        score=READER_COLUMN,
        title="AUROC of the reader's score",
        reason=reason,
    )
    own = replace(
        ranking_metric(
            weighted.auroc, label_target, title="AUROC where a reader has scored", reason=reason
        ),
        usable=lambda rows: _has_prob(rows) & reader.usable(rows),
    )
    return {
        "reader_auroc": replace(reader, better="none"),
        "auroc_where_read": own,
        "auroc_minus_reader": replace(
            own,
            title="AUROC minus that of the reader's score",
            compute=lambda rows, weights: (
                own.compute(rows, weights) - reader.compute(rows, weights)
            ),
            bounds=(-1.0, 1.0),
        ),
    }


def further_metrics(names: Iterable[str]) -> Mapping[str, Metric]:
    """Return the metrics that not every run has: of a reader's score, of prompted masks, of classes, of findings.

    ``names`` are columns of prediction rows, or metrics. Metrics of all classes or findings alone (``accuracy``) come without
    those of each, and only to be named: which classes there are is not known before there are rows.
    """
    found = list(names)
    further = reader_metrics() if {READER_COLUMN, *reader_metrics()} & set(found) else {}
    further |= mask_metrics() if set(mask_metrics()) & set(found) else {}
    if findings := class_names(
        found, prefix=CLASS_PROB if FINDINGS_COLUMN in found else FINDING_AUROC
    ):
        return further | finding_metrics(findings)
    if (set(finding_metrics(())) - {"auroc_macro"}) & set(found):
        return further | finding_metrics(())
    # Columns where there are rows, else the metrics of an earlier document.
    is_rows = CLASS_COLUMN in found
    classes = class_names(found, prefix=CLASS_PROB if is_rows else CLASS_AUROC)
    ordinal = (EXPECTED if is_rows else KAPPA) in found
    if classes or set(class_metrics((), ordinal=True)) & set(found):
        further |= class_metrics(classes, ordinal=ordinal)
    return further


def mask_metrics() -> dict[str, Metric]:
    """Return how well the prompted mask, or a baseline's, meets the outline of a held-out core; one without is left out."""
    mean = partial(
        mean_metric, reason="needs a core with a lesion outline, and a mask of this rule"
    )
    clicks = "Points until the mask has a Dice of {}, one more than there are if never" + OUTLINE
    return {
        "dice": mean(
            "dice",
            title=f"Dice of the prompted mask{OUTLINE}",
            better="higher",
            bounds=SHARE,
        ),
        "iou": mean(
            "iou",
            title=f"Intersection over union of the prompted mask{OUTLINE}",
            better="higher",
            bounds=SHARE,
        ),
        "hausdorff95_px": mean(
            "hausdorff95_px",
            title=f"Hausdorff distance of the prompted mask, 95 %, pixels of the model image{OUTLINE}",
            better="lower",
            bounds=NOT_NEGATIVE,
        ),
        "hausdorff95_mm": mean_metric(
            "hausdorff95_mm",
            title=f"Hausdorff distance of the prompted mask, 95 %, mm{OUTLINE}",
            better="lower",
            reason="needs a core with a lesion outline and a known pixel spacing",
            bounds=NOT_NEGATIVE,
        ),
        **{
            f"clicks_to_{level}": mean(
                f"clicks_to_{level}",
                title=clicks.format(level / 100),
                better="lower",
                bounds=(1.0, np.inf),
            )
            for level in (80, 90)
        },
    }


METRICS: dict[str, Metric] = build_metrics(MetricOptions())


def build_suite(options: Mapping[str, float]) -> MetricSuite:
    """Return what the evaluation needs of this task; ``options`` are the fields of MetricOptions.

    Raises:
        pydantic.ValidationError: if an option is unknown or out of range.
    """
    return MetricSuite(
        unit=Unit("core_id", noun="core", facts=("label",)),
        metrics=build_metrics(MetricOptions.model_validate(dict(options))),
        rules=RULES,
        required=REQUIRED,
        finite=("label", "prob"),
        combine=combine_frames,
        prepare=add_prob_shift,
        summary=summary,
        discover=further_metrics,
        headline=(
            "auroc",
            "average_precision",
            "brier",
            "lesion_hit",
            "lesion_hit_ratio",
            "reward",
        ),
        bar=Bar(
            metrics=("auroc", "lesion_hit"),
            shuffled="shuffled",
            fixed=("centre", "fixed", "constant", "blobs"),
            ceilings=("oracle",),
            unmoved="a fixed detector, not learned",
        ),
    )
