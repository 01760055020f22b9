"""Judge the policy against each other rule and baseline: better, worse, or no difference shown."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_pipeline.statistics.metric import Bar, Metric
from grpo_pipeline.statistics.wording import Entry, tone_of

VERDICTS = {"better": "better", "same": "no difference shown", "worse": "worse"}

UNKNOWN = "no statement"


def verdicts(
    gaps: Mapping[str, Mapping[str, Entry]], metrics: Mapping[str, Metric], judged: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Judge the policy by rule and metric: "better", "no difference shown", "worse"; "no statement" without an interval.

    Args:
        gaps: rule -> metric -> paired difference, policy minus rule.
        metrics: metrics of the task.
        judged: names of the judged metrics.
    """
    return {
        rule: {name: _verdict(entries[name], metrics[name]) for name in judged}
        for rule, entries in gaps.items()
    }


def _verdict(gap: Entry, metric: Metric) -> str:
    return VERDICTS.get(tone_of(gap, metric.better), UNKNOWN)


def baseline_sentences(
    comparison: Mapping[str, Any],
    metrics: Mapping[str, Metric],
    judged: Sequence[str],
    bar: Bar | None = None,
) -> list[str]:
    """Write which rules and baselines the policy is better and worse than, in each judged metric.

    Rules without an interval are left out: they do not have the metric. Ceilings are left out: they know the answer.

    Args:
        comparison: the document with ``baseline_arm`` and ``verdicts``, rule -> metric -> verdict.
        metrics: metrics of the task.
        judged: names of the metrics, in their order.
        bar: names the ceilings.
    """
    words = {"better": "better than", "same": "not shown to differ from", "worse": "worse than"}
    sentences = []
    for name in judged:
        named: dict[str, list[str]] = {kind: [] for kind in words}
        for rule, told in comparison.get("verdicts", {}).items():
            for kind, verdict in VERDICTS.items():
                if told[name] == verdict and (bar is None or bar.role(rule) != "ceiling"):
                    named[kind].append(rule)
        said = "; ".join(
            f"{words[kind]} {', '.join(rules)}" for kind, rules in named.items() if rules
        )
        if said:
            who = f"{comparison['baseline_arm']}, its own policy beside what one would try instead"
            sentences.append(f"{who}, by {metrics[name].title}: {said}.")
    return sentences
