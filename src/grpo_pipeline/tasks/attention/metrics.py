"""The metrics of the attention task, each computed from the prediction rows of one arm and one point rule.

Definitions, directions and the rule for "undefined" are in docs/metrics.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.statistics import weighted
from grpo_pipeline.statistics.metric import (
    Bar,
    Metric,
    MetricSuite,
    Unit,
    column,
    has_value,
    mean_metric,
)
from grpo_pipeline.statistics.wording import Entry, judge, signed
from grpo_pipeline.tasks.attention.data.params import (
    CLASS_COLUMN,
    FINDINGS_COLUMN,
    FRAME_COLUMN,
    NO_CLASS_NAMES,
    READER_COLUMN,
    AggregateParams,
)

# Plain sentences about a comparison document, each read off an interval; nothing here looks at more than the numbers.


def summary(comparison: Mapping[str, Any]) -> list[str]:
    """Say for every arm whether its points beat uniform ones, fall into lesions, matter, and change the AUROC.

    Args:
        comparison: the document of docs/metrics.md, without its summary.
    """
    control = comparison["control"]
    sentences = [
        sentence
        for arm, scores in comparison["arms"].items()
        if arm != control
        for sentence in (
            reward_sentence(arm, comparison["policy_gain"].get(arm, {}).get("reward")),
            lesion_sentence(arm, scores["metrics"]["lesion_hit_ratio"]),
            sensitivity_sentence(arm, scores["metrics"]["prompt_sensitivity_images"]),
            auroc_sentence(arm, comparison["differences"][arm]["auroc"], control=control),
        )
    ]
    return [
        *sentences,
        *reader_sentences(comparison),
        *oracle_sentences(comparison),
        *outline_sentences(comparison),
    ]


def reader_sentences(comparison: Mapping[str, Any]) -> list[str]:
    """Say of every arm whether its AUROC differs from that of a reader's score, and how many cores have no such score."""
    sentences = []
    for arm, scores in comparison["arms"].items():
        found = scores["metrics"]
        if (difference := found.get("auroc_minus_reader")) is None:
            continue
        reader, count = found["reader_auroc"], difference["n"]
        missing = comparison["n"]["examples"] - count
        left_out = f" ({missing} without a score are left out of this comparison alone)" * (
            missing > 0
        )
        if difference["ci95"] is None:
            sentences.append(
                f"{arm}: AUROC beside the reader's score on {count} cores{left_out}: no statement ({difference['reason']})."
            )
            continue
        ending = judge(difference, above="better than the reader", below="worse than the reader")
        sentences.append(
            f"{arm}: AUROC minus that of the reader's score, {reader['value']:.3f}, on {count} cores{left_out}: "
            f"{signed(difference)}: {ending}."
        )
    return sentences


def reward_sentence(arm: str, gain: Entry | None) -> str:
    """Say whether the learned policy earns more reward than uniform points with the same decoder."""
    if gain is None:
        return f"{arm}: reward against uniform points: not measured."
    if gain["ci95"] is None:
        return f"{arm}: reward against uniform points: no statement ({gain['reason']})."
    ending = judge(
        gain, above="its points are better than chance", below="its points are worse than chance"
    )
    return f"{arm}: with the same decoder, the policy's points earn {signed(gain)} reward over uniform points: {ending}."


def lesion_sentence(arm: str, ratio: Entry) -> str:
    """Say how often points fall into lesions compared with uniform points (ratio 1)."""
    if ratio["ci95"] is None:
        return f"{arm}: points in lesions against uniform points: no statement ({ratio['reason']})."
    low, high = ratio["ci95"]
    ending = judge(
        ratio,
        above="the attention finds lesions",
        below="the attention avoids lesions",
        neutral=1.0,
    )
    return (
        f"{arm}: points fall into lesions {ratio['value']:.1f} times as often as uniform points "
        f"(95% interval {low:.1f} to {high:.1f}): {ending}."
    )


def sensitivity_sentence(arm: str, shift: Entry) -> str:
    """Say how far the probability moves when the points of another core are used."""
    if shift["value"] is None:
        return f"{arm}: effect of another core's points: no statement ({shift['reason']})."
    return f"{arm}: with another core's points the predicted probability moves by {shift['value']:.3f} on average."


def auroc_sentence(arm: str, difference: Entry, *, control: str) -> str:
    """Say whether the AUROC differs from the control's."""
    if difference["ci95"] is None:
        return f"{arm}: AUROC against {control}: no statement ({difference['reason']})."
    ending = judge(difference, above=f"better than {control}", below=f"worse than {control}")
    return f"{arm}: AUROC difference to {control} {signed(difference)}: {ending}."


def oracle_sentences(comparison: Mapping[str, Any]) -> list[str]:
    """Say what the same decoder reaches with points that know the lesion, where that was measured."""
    oracle = comparison["baselines"].get("oracle", {}).get("metrics", {}).get("auroc", {})
    if oracle.get("value") is None:
        return []
    return [
        f"With points placed by an oracle that knows the lesion, {comparison['baseline_arm']}'s AUROC is {oracle['value']:.3f}."
    ]


def outline_sentences(comparison: Mapping[str, Any]) -> list[str]:
    """Say whether lesion outlines supervised the heatmap; nothing where the held-out cores have none."""
    metrics = comparison["arms"][comparison["control"]]["metrics"]
    share = metrics.get("outlined_share", {}).get("value")
    if share is None or not metrics["lesion_hit"]["n"]:
        return []
    if share == 0:
        return [
            "No lesion outline supervised the heatmap; titles say which metrics read the outlines of held-out cores."
        ]
    if "dice" in metrics:
        return [
            f"The lesion outline of {share:.0%} of the training cores was shown to losses and rewards: this is no learning from "
            "labels alone. No outline of a held-out core was; titles say which metrics read those."
        ]
    return [
        f"The lesion outline of {share:.0%} of the training cores supervised the heatmap: this is no learning from labels alone. "
        "Figures of the heatmap in the bag average over the outline of the held-out core, and detect nothing."
    ]


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
    *("policy", "greedy", "uniform", "centre", "fixed", "constant", "blobs", "none", "oracle"),
    *("shuffled", "heatmap", "picture", "texture", "cnn", "attention_cnn", "unet"),
)
FACTS = ("core_id", "patient_id", "center", "label", "involvement", "grade_group")
CLASS_COLUMNS = (CLASS_COLUMN, FINDINGS_COLUMN)
OUTLINE = " (reads the test outline)"
BOTH_CLASSES = "needs at least one positive and one negative core"

Target = Callable[[pd.DataFrame], np.ndarray]
Ranking = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
Mass = Callable[[np.ndarray, np.ndarray], np.ndarray]


class MetricOptions(BaseModel):
    """The constants that the definitions leave open."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    calibration_bins: int = Field(
        default=10, ge=2, description="equal-width bins of the calibration error"
    )
    high_involvement: float = Field(
        default=0.4, gt=0, le=1, description="least involvement of a high-involvement positive"
    )


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
        ),
        "ece": Metric(
            title=f"Calibration error, {options.calibration_bins} bins",
            better="lower",
            reason=no_rows,
            usable=_has_prob,
            compute=lambda rows, weights: weighted.calibration_error(
                column(rows, "prob"),
                label_target(rows) == 1,
                weights,
                bins=options.calibration_bins,
            ),
        ),
    }


def _attention_metrics() -> dict[str, Metric]:
    no_lesion = "needs a core with a lesion outline"
    return {
        "lesion_hit": mean_metric(
            "lesion_hit",
            title=f"Share of points in the lesion{OUTLINE}",
            better="higher",
            reason=no_lesion,
        ),
        "lesion_hit_ratio": Metric(
            title=f"Points in the lesion, ratio to uniform points{OUTLINE}",
            better="higher",
            reason="needs a core whose lesion outline meets the region",
            usable=lambda rows: has_value("lesion_hit", rows) & has_value("lesion_coverage", rows),
            compute=lambda rows, weights: weighted.mean_ratio(
                column(rows, "lesion_hit"), column(rows, "lesion_coverage"), weights
            ),
            mass=lambda rows, weights: weights @ column(rows, "lesion_coverage"),
        ),
        "pointing_hit": mean_metric(
            "pointing_hit",
            title=f"Heatmaps whose highest cell is in the lesion{OUTLINE}",
            better="higher",
            reason=no_lesion,
        ),
        "outlined_share": mean_metric(
            "outlined_share",
            title="Training cores whose lesion outline was shown to the losses",
            better="none",
            reason="needs a training core",
        ),
        "points_used": mean_metric(
            "points_used", title="Points in a set", better="none", reason="needs at least one core"
        ),
        "lesion_distance_mm": mean_metric(
            "lesion_distance_mm",
            title=f"Distance of the points to the lesion, mm{OUTLINE}",
            better="lower",
            reason="needs a core with a lesion outline and a known pixel spacing",
        ),
        "prompt_sensitivity_samples": mean_metric(
            "prob_std",
            title="Spread of the probability over point sets",
            better="none",
            reason="needs several point sets per core",
        ),
        "prompt_sensitivity_images": mean_metric(
            "prob_shift",
            title="Change of the probability with another core's points",
            better="none",
            reason="is measured for the rule policy and needs the rule shuffled",
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
        ),
    }


CLASS_PROB, EXPECTED = "prob_", "expected_class"
"""What the column of a class begins with, and the column of the mean grade."""
CLASS_AUROC, KAPPA = "auroc_class_", "kappa_quadratic"
"""What the metric of a class begins with, and the metric of grades."""
FINDING_AUROC = "auroc_finding_"
"""What the metric of one of several findings begins with."""


def is_of_classes(name: str) -> bool:
    """Say whether a column of prediction rows is one of classes: a probability, or the mean grade."""
    return bool(class_names([name])) or name == EXPECTED


def class_names(names: Iterable[str], *, prefix: str = CLASS_PROB) -> list[str]:
    """Return the classes that columns of prediction rows (or metrics, with their prefix) are about, in the order of these."""
    named = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return [name for name in named if name not in NO_CLASS_NAMES]


def class_metrics(classes: Sequence[str], *, ordinal: bool) -> dict[str, Metric]:
    """Return how well classes are told apart: each against the rest, their mean, and what the likeliest class gets right.

    The number of a class is its place among the columns ``prob_<class>`` of the rows.

    Args:
        classes: their names.
        ordinal: whether they are grades, so that it counts how far a wrong one is away.
    """
    count, every = len(classes), f"needs a core of each of the classes {', '.join(classes)}"

    def usable(rows: pd.DataFrame) -> np.ndarray:
        columns = (f"{CLASS_PROB}{name}" for name in classes)
        has_all = [has_value(name, rows) for name in (CLASS_COLUMN, *columns)]
        return np.asarray(np.stack(has_all).all(axis=0))

    def numbers(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Return the likeliest class and the right one, int64 [n] each."""
        columns = (f"{CLASS_PROB}{name}" for name in class_names(rows.columns))
        probs = np.stack([column(rows, name) for name in columns], axis=1)
        return probs.argmax(1), column(rows, CLASS_COLUMN).astype(np.int64)

    def is_of(name: str, rows: pd.DataFrame) -> np.ndarray:
        return np.asarray(column(rows, CLASS_COLUMN) == class_names(rows.columns).index(name))

    def auroc(name: str, rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
        return weighted.auroc(column(rows, f"{CLASS_PROB}{name}"), is_of(name, rows), weights)

    def pairs(name: str, rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
        return weighted.count_pairs(is_of(name, rows), weights)

    metric = partial(Metric, better="higher", usable=usable)
    found = {
        f"{CLASS_AUROC}{name}": metric(
            title=f"AUROC, {name} against the other classes",
            reason=f"needs a core of the class {name} and one of another",
            compute=partial(auroc, name),
            mass=partial(pairs, name),
        )
        for name in classes
    }
    found["auroc_macro"] = metric(
        title="AUROC, mean over the classes",
        reason=every,
        compute=lambda rows, weights: np.mean([auroc(c, rows, weights) for c in classes], axis=0),
    )
    found["accuracy"] = metric(
        title="Accuracy of the likeliest class",
        reason="needs a core with a class",
        compute=lambda rows, weights: weighted.mean(
            np.equal(*numbers(rows)).astype(np.float64), weights
        ),
    )
    found["balanced_accuracy"] = metric(
        title="Accuracy of the likeliest class, mean over the classes",
        reason=every,
        compute=lambda rows, weights: weighted.balanced_accuracy(
            *numbers(rows), weights, classes=count
        ),
    )
    if ordinal:
        found[KAPPA] = metric(
            title="Quadratic weighted kappa of the grades",
            reason="needs cores of two grades",
            compute=lambda rows, weights: weighted.quadratic_kappa(
                *numbers(rows), weights, classes=count
            ),
        )
    return found


def finding_metrics(findings: Sequence[str]) -> dict[str, Metric]:
    """Return how well findings are told, of which a core may have several: each by itself, their means, and the whole sets.

    A finding is called where its probability is above one half. The bit of a finding is its place among the columns
    ``prob_<finding>`` of the rows. ``*_constant`` is what the best answer reaches that is the same for every core, chosen on the
    rows that are measured: nothing that reads no image can do better.

    Args:
        findings: their names.
    """

    def usable(rows: pd.DataFrame) -> np.ndarray:
        columns = (FINDINGS_COLUMN, *(f"{CLASS_PROB}{name}" for name in findings))
        return np.asarray(np.stack([has_value(name, rows) for name in columns]).all(axis=0))

    def has(name: str, rows: pd.DataFrame) -> np.ndarray:
        bit = 1 << class_names(rows.columns).index(name)
        return np.asarray((column(rows, FINDINGS_COLUMN).astype(np.int64) & bit) > 0)

    def of_one(
        statistic: Ranking, name: str, rows: pd.DataFrame, weights: np.ndarray
    ) -> np.ndarray:
        return statistic(column(rows, f"{CLASS_PROB}{name}"), has(name, rows), weights)

    def of_all(statistic: Ranking, rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
        each = [of_one(statistic, name, rows, weights) for name in findings]
        return np.asarray(np.mean(each, axis=0))

    def count(mass: Mass, name: str, rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
        return mass(has(name, rows), weights)

    def wrong(rows: pd.DataFrame) -> np.ndarray:
        """Return how many findings are called wrong, [n]."""
        called = np.stack([column(rows, f"{CLASS_PROB}{name}") > 0.5 for name in findings])
        return np.asarray((called != np.stack([has(name, rows) for name in findings])).sum(0))

    def shares(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
        """Return the share of the rows with each finding, [C, B]."""
        return np.stack([weighted.mean(has(n, rows).astype(np.float64), weights) for n in findings])

    def commonest(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
        """Return the share of the rows with the commonest set of findings, [B]."""
        _, which = np.unique(column(rows, FINDINGS_COLUMN), return_inverse=True)
        is_set = which[:, None] == np.arange(which.max() + 1)  # [n, sets]
        return weighted.divide((weights @ is_set).max(1), weights.sum(1))

    metric = partial(
        Metric, usable=usable, reason="needs a core with a probability of each finding"
    )
    every = f"needs a core with and one without each of the findings {', '.join(findings)}"
    constant = "of the best answer that is the same for all"
    kinds: tuple[tuple[str, str, Ranking, Mass], ...] = (
        ("auroc", "AUROC", weighted.auroc, weighted.count_pairs),
        (
            "average_precision",
            "Average precision",
            weighted.average_precision,
            weighted.count_positives,
        ),
    )
    found = {
        f"{kind}_finding_{name}": metric(
            title=f"{title} of the finding {name}",
            better="higher",
            reason=f"needs a core with the finding {name} and one without it",
            compute=partial(of_one, statistic, name),
            mass=partial(count, mass, name),
        )
        for kind, title, statistic, mass in kinds
        for name in findings
    }
    for kind, title, statistic, _ in kinds:
        found[f"{kind}_macro"] = metric(
            title=f"{title}, mean over the findings",
            better="higher",
            reason=every,
            compute=partial(of_all, statistic),
        )
    return found | {
        "average_precision_macro_constant": metric(
            title=f"Average precision, mean over the findings, {constant}",
            better="none",
            compute=lambda rows, weights: shares(rows, weights).mean(0),
        ),
        "exact_match": metric(
            title="Share of cores whose findings are all called right",
            better="higher",
            compute=lambda rows, weights: weighted.mean(wrong(rows) == 0.0, weights),
        ),
        "exact_match_constant": metric(
            title=f"Share of cores whose findings are all called right, {constant}",
            better="none",
            compute=commonest,
        ),
        "wrong_findings": metric(
            title="Findings called wrong, mean per core",
            better="lower",
            compute=lambda rows, weights: weighted.mean(wrong(rows), weights),
        ),
        "wrong_findings_constant": metric(
            title=f"Findings called wrong, mean per core, {constant}",
            better="none",
            compute=lambda rows, weights: np.minimum(
                shares(rows, weights), 1 - shares(rows, weights)
            ).sum(0),
        ),
    }


def further_metrics(names: Iterable[str]) -> Mapping[str, Metric]:
    """Return the metrics that not every run has: of a reader's score, of prompted masks, of classes, of findings.

    ``names`` are columns of prediction rows, or metrics; also of classes or findings that are not known yet.
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
    mean = partial(mean_metric, reason="needs a core with a lesion outline")
    clicks = "Points until the mask has a Dice of {}, one more than there are if never" + OUTLINE
    return {
        "dice": mean("dice", title=f"Dice of the prompted mask{OUTLINE}", better="higher"),
        "iou": mean(
            "iou", title=f"Intersection over union of the prompted mask{OUTLINE}", better="higher"
        ),
        "hausdorff95_px": mean(
            "hausdorff95_px",
            title=f"Hausdorff distance of the prompted mask, 95 %, pixels of the model image{OUTLINE}",
            better="lower",
        ),
        "hausdorff95_mm": mean_metric(
            "hausdorff95_mm",
            title=f"Hausdorff distance of the prompted mask, 95 %, mm{OUTLINE}",
            better="lower",
            reason="needs a core with a lesion outline and a known pixel spacing",
        ),
        "clicks_to_80": mean("clicks_to_80", title=clicks.format(0.8), better="lower"),
        "clicks_to_90": mean("clicks_to_90", title=clicks.format(0.9), better="lower"),
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
            control="shuffled",
            fixed=("centre", "fixed", "constant", "blobs"),
            ceilings=("oracle",),
        ),
    )
