"""Choose the metrics of a comparison that become MLflow metrics; all others are in a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from grpo_pipeline.tracking.flat_parameters import sanitise
from grpo_pipeline.tracking.metric_points import as_number

MOST_SHOWN = 9

INTERVAL = ("ci_low", "ci_high")

COLUMNS = ("what", "of", "metric")


def shown_metrics(comparison: Mapping[str, Any], *, tasks: int = 1) -> list[str]:
    """Choose the shown metrics of a comparison: the first of its short table, fewer if there are several tasks."""
    names = dict.fromkeys(n for one in comparison["arms"].values() for n in one["metrics"])
    short = [name for name in comparison.get("headline", ()) if name in names] or [*names]
    return short[: max(1, MOST_SHOWN // tasks)]


def arm_scores(comparison: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Collect the scores of each arm: arm -> ``test/<metric>``, with the name of the comparison's split."""
    prefix = f"{comparison.get('split', 'test')}/"
    return {
        arm: dict(metric_values(scores["metrics"], names, prefix=prefix))
        for arm, scores in comparison["arms"].items()
    }


def parent_scores(
    comparison: Mapping[str, Any], names: Sequence[str], *, prefix: str = ""
) -> dict[str, float]:
    """Collect ``test/<metric>`` and ``difference/<metric>`` to the control, of the arm that the answer is about.

    ``prefix`` stands before a metric's name, where several tasks share a run.
    """
    arm = str(comparison.get("baseline_arm", comparison.get("control", "")))
    scores = comparison["arms"].get(arm, {"metrics": {}})["metrics"]
    gaps = comparison.get("differences", {}).get(arm, {})
    own = metric_values(scores, names, prefix=f"{comparison.get('split', 'test')}/{prefix}")
    return dict([*own, *metric_values(gaps, names, prefix=f"difference/{prefix}")])


def metric_values(
    entries: Mapping[str, Any], names: Iterable[str], *, prefix: str
) -> Iterator[tuple[str, float]]:
    """Yield the numeric values of these metrics, under names that MLflow allows."""
    for metric in names:
        if (number := as_number(entries.get(metric, {}).get("value"))) is not None:
            yield sanitise(prefix + metric), number


def comparison_table(comparison: Mapping[str, Any]) -> pd.DataFrame:
    """Tabulate every figure of a comparison: ``what``, ``of``, ``metric``, ``value`` and the ends of its interval."""
    rows = [
        *table_rows("arm", comparison["arms"], key="metrics"),
        *table_rows("difference to the control", comparison.get("differences", {})),
        *table_rows("gain over the start", comparison.get("policy_gain", {})),
        *table_rows("other rule", comparison.get("baselines", {}), key="metrics"),
    ]
    return pd.DataFrame(rows, columns=[*COLUMNS, "value", *INTERVAL, "reason"])


def table_rows(
    what: str, sections: Mapping[str, Any], *, key: str = "", more: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield a row of the table for each metric of each section; ``more`` names further columns of the entries."""
    for of, section in sections.items():
        for metric, entry in (section[key] if key else section).items():
            low, high = entry.get("ci95") or (None, None)
            yield {
                **dict(zip(COLUMNS, (what, of, metric), strict=True)),
                "value": entry.get("value"),
                **dict(zip(INTERVAL, (low, high), strict=True)),
                **{name: entry.get(name) for name in more},
                "reason": entry.get("reason"),
            }
