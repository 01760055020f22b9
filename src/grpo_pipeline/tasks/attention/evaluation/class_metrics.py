"""Metrics of several classes: how well they are told apart, or how well findings are, of which a core may have several.

They exist for data with ``attention.data.label.classes``; the classes are those of the columns ``prob_<class>`` of the rows.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import pandas as pd

from grpo_pipeline.statistics import linear_resampling, weighted
from grpo_pipeline.statistics.columns import column, has_value
from grpo_pipeline.statistics.metric import SHARE, Metric
from grpo_pipeline.statistics.weighted import Mass, Ranking
from grpo_pipeline.tasks.attention.data.classes import NO_CLASS_NAMES
from grpo_pipeline.tasks.attention.data.table_columns import CLASS_COLUMN, FINDINGS_COLUMN

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

    def right_class(rows: pd.DataFrame) -> np.ndarray:
        return column(rows, CLASS_COLUMN)

    metric = partial(Metric, better="higher", usable=usable, bounds=SHARE)
    found = {
        f"{CLASS_AUROC}{name}": metric(
            title=f"AUROC, {name} against the other classes",
            reason=f"needs a core of the class {name} and one of another",
            compute=partial(auroc, name),
            mass=partial(pairs, name),
            sides=partial(is_of, name),
        )
        for name in classes
    }
    found["auroc_macro"] = metric(
        title="AUROC, mean over the classes",
        reason=every,
        compute=lambda rows, weights: np.mean([auroc(c, rows, weights) for c in classes], axis=0),
        sides=right_class,
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
        sides=right_class,
    )
    if ordinal:
        found[KAPPA] = metric(
            title="Quadratic weighted kappa of the grades",
            reason="needs cores of two grades",
            compute=lambda rows, weights: weighted.quadratic_kappa(
                *numbers(rows), weights, classes=count
            ),
            bounds=(-1.0, 1.0),
        )
    return found


OF_A_FINDING: tuple[tuple[str, str, Ranking, Mass], ...] = (
    ("auroc", "AUROC", weighted.auroc, weighted.count_pairs),
    (
        "average_precision",
        "Average precision",
        weighted.average_precision,
        weighted.count_positives,
    ),
)
"""What is measured of each finding by itself: begin of the name, title, statistic, and what there must be some of."""


def finding_metrics(findings: Sequence[str]) -> dict[str, Metric]:
    """Return how well findings are told, of which a core may have several: each by itself, their means, and the whole sets.

    A finding is called where its probability is above one half. The bit of a finding is its place among the columns
    ``prob_<finding>`` of the rows. ``*_constant`` is what the best answer reaches that is the same for every core, chosen on the
    rows that are measured: nothing that reads no image can do better.

    Args:
        findings: their names.
    """
    metric = partial(
        Metric,
        usable=partial(has_all_findings, findings),
        reason="needs a core with a probability of each finding",
        bounds=SHARE,
    )
    some_wrong = (0.0, float(len(findings) or np.inf))  # range of their number in a core
    every = f"needs a core with and one without each of the findings {', '.join(findings)}"
    constant = "of the best answer that is the same for all"
    found = {
        f"{kind}_finding_{name}": metric(
            title=f"{title} of the finding {name}",
            better="higher",
            reason=f"needs a core with the finding {name} and one without it",
            compute=partial(rank_finding, statistic, name),
            mass=partial(weigh_finding, mass, name),
            sides=partial(has_finding, name),
        )
        for kind, title, statistic, mass in OF_A_FINDING
        for name in findings
    }
    for kind, title, statistic, _ in OF_A_FINDING:
        found[f"{kind}_macro"] = metric(
            title=f"{title}, mean over the findings",
            better="higher",
            reason=every,
            compute=partial(rank_findings, statistic, findings),
            sides=partial(held_findings, findings),
        )

    wrong = partial(count_wrong, findings)
    shares = partial(finding_shares, findings)
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
            compute=commonest_share,
        ),
        "wrong_findings": metric(
            title="Findings called wrong, mean per core",
            better="lower",
            compute=lambda rows, weights: weighted.mean(wrong(rows), weights),
            bounds=some_wrong,
        ),
        "wrong_findings_constant": metric(
            title=f"Findings called wrong, mean per core, {constant}",
            better="none",
            compute=partial(rarer_shares, findings),
            bounds=some_wrong,
        ),
    }


def has_all_findings(findings: Sequence[str], rows: pd.DataFrame) -> np.ndarray:
    """Return which rows have a probability of each finding and say which of them are there, bool [n]."""
    columns = (FINDINGS_COLUMN, *(f"{CLASS_PROB}{name}" for name in findings))
    return np.asarray(np.stack([has_value(name, rows) for name in columns]).all(axis=0))


def has_finding(name: str, rows: pd.DataFrame) -> np.ndarray:
    """Return which cores have the finding, bool [n]."""
    bit = 1 << class_names(rows.columns).index(name)
    return np.asarray((column(rows, FINDINGS_COLUMN).astype(np.int64) & bit) > 0)


def held_findings(findings: Sequence[str], rows: pd.DataFrame) -> np.ndarray:
    """Return which cores have each finding, bool [C, n]."""
    return np.stack([has_finding(name, rows) for name in findings])


def rank_finding(
    statistic: Ranking, name: str, rows: pd.DataFrame, weights: np.ndarray
) -> np.ndarray:
    """Return a statistic of how the probability of a finding ranks the cores, [B]."""
    return statistic(column(rows, f"{CLASS_PROB}{name}"), has_finding(name, rows), weights)


def rank_findings(
    statistic: Ranking, findings: Sequence[str], rows: pd.DataFrame, weights: np.ndarray
) -> np.ndarray:
    """Return the mean of ``rank_finding`` over the findings, [B]."""
    each = [rank_finding(statistic, name, rows, weights) for name in findings]
    return np.asarray(np.mean(each, axis=0))


def weigh_finding(mass: Mass, name: str, rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return how much the resamples hold of what a statistic of a finding is over, [B]."""
    return mass(has_finding(name, rows), weights)


def count_wrong(findings: Sequence[str], rows: pd.DataFrame) -> np.ndarray:
    """Return how many findings of each core are called wrong, [n]."""
    called = np.stack([column(rows, f"{CLASS_PROB}{name}") > 0.5 for name in findings])
    return np.asarray((called != held_findings(findings, rows)).sum(0))


def finding_shares(findings: Sequence[str], rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return the share of the cores with each finding, [C, B]."""
    return np.stack(
        [weighted.mean(has_finding(n, rows).astype(np.float64), weights) for n in findings]
    )


def commonest_share(rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return the share of the cores with the commonest set of findings, [B]; it varies as the jackknife over rows says."""
    _, which = np.unique(column(rows, FINDINGS_COLUMN), return_inverse=True)
    is_set = which[:, None] == np.arange(which.max() + 1)  # [n, sets]

    def commonest(weights: np.ndarray) -> np.ndarray:
        return weighted.divide((weights @ is_set).max(1), weights.sum(1))

    return linear_resampling.linear(commonest, which, weights)


def rarer_shares(findings: Sequence[str], rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
    """Return the sum over the findings of the share with or without it, whichever is rarer, [B]; it varies as the last."""

    def rarer(weights: np.ndarray) -> np.ndarray:
        shares = finding_shares(findings, rows, weights)
        return np.asarray(np.minimum(shares, 1 - shares).sum(0))

    sets = column(rows, FINDINGS_COLUMN)
    return linear_resampling.linear(rarer, sets, weights, highest=len(findings) / 2)
