"""Put differences with intervals into sentences, for every task."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_pipeline.statistics.bootstrap import FEW_CLUSTERS
from grpo_pipeline.statistics.metric import Bar, Direction, Metric

Entry = Mapping[str, Any]
ALPHA = 0.05  # 1 - LEVEL, which is a little more in binary


def side_of(entry: Entry | None, *, neutral: float = 0.0) -> int | None:
    """Decide what an entry shows: 1 above the neutral value, -1 below it, 0 neither, None where nothing can be told.

    Every mark, verdict and sentence about a difference is this decision. The interval ``ci95`` decides. Where a difference was
    corrected for the number of comparisons, its simultaneous interval decides, and its corrected p-value must be below 0.05 as
    well: nothing is called better whose widest interval holds the neutral value. An end of None is infinite.
    """
    if entry is None or entry.get("ci95") is None:
        return None
    if entry.get("p_holm", 0.0) >= ALPHA:
        return 0
    low, high = entry.get("ci95_simultaneous") or entry["ci95"]
    return int(low is None or low > neutral) - int(high is not None and high < neutral)


def judge(entry: Entry, *, above: str, below: str, neutral: float = 0.0) -> str:
    """Choose the words by what an entry with an interval shows."""
    side = side_of(entry, neutral=neutral)
    return {1: above, -1: below}.get(side or 0, "no difference shown")


def tone_of(entry: Entry, better: Direction, *, neutral: float = 0.0) -> str:
    """Return "better", "worse", "same" (not shown to differ), or "" where nothing can be told or neither side is good."""
    side = side_of(entry, neutral=neutral)
    if side is None or better == "none":
        return ""
    if side == 0:
        return "same"
    return "better" if (side > 0) == (better == "higher") else "worse"


def few_clusters_sentences(n: Mapping[str, Any], taking_part: str = "held out") -> list[str]:
    """Say where there are too few clusters for any interval.

    Args:
        n: ``clusters``, their number, and ``cluster``, what they are.
        taking_part: what is done with them.
    """
    if n["clusters"] >= FEW_CLUSTERS:
        return []
    return [
        f"Only {n['clusters']} clusters by {n['cluster']} are {taking_part}, fewer than {FEW_CLUSTERS}: there are no intervals, "
        "and nothing is shown to be better or worse."
    ]


def signed(entry: Entry) -> str:
    """Write a difference with its sign and interval: ``+0.012 (95% interval -0.020 to +0.041)``."""
    low, high = entry["ci95"]
    return f"{entry['value']:+.3f} (95% interval {low:+.3f} to {high:+.3f})"


# Say in sentences what got worse and what got better, in one form for every metric that has a good direction.


def change_sentences(
    comparison: Mapping[str, Any], metrics: Mapping[str, Metric], *, chance_rule: str
) -> list[str]:
    """Say for every arm what differs from the control, and what its own samples change beside the chance rule's.

    A metric differs where its paired 95% interval leaves out 0. What got worse stands before what got better, in the same words.
    With m metrics looked at, about m / 20 intervals leave out 0 by chance alone; the sentences say m.

    Args:
        comparison: with arms, control, differences and, where there is a chance rule, ``policy_gain``.
        metrics: of the task, with titles and directions; those without a good direction are left out.
        chance_rule: the rule that ``policy_gain`` is measured against, such as the start.
    """
    sentences = []
    for arm in comparison["arms"]:
        for than, section in (
            (comparison["control"], "differences"),
            (f"the rule {chance_rule}", "policy_gain"),
        ):
            if (entries := comparison.get(section, {}).get(arm)) is not None:
                sentences += _told(arm, than, entries, metrics)
    return sentences


def changes(entries: Mapping[str, Entry], metrics: Mapping[str, Metric]) -> dict[str, list[str]]:
    """Return the names of the metrics that got "worse" and "better", and of those that are "same": not shown to differ.

    Metrics without a good direction, and without an interval, are in none of the lists.
    """
    found: dict[str, list[str]] = {"worse": [], "better": [], "same": []}
    for name, metric in metrics.items():
        entry = entries.get(name)
        if entry is not None and (kind := tone_of(entry, metric.better)):
            found[kind].append(name)
    return found


# Hold the policy against what one would try instead: a verdict for each other rule.

VERDICTS = {"better": "better", "same": "no difference shown", "worse": "worse"}
UNKNOWN = "no statement"


def verdicts(
    gaps: Mapping[str, Mapping[str, Entry]], metrics: Mapping[str, Metric], judged: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return rule -> metric -> "better", "no difference shown", "worse" (of the policy), or "no statement" without an interval.

    Args:
        gaps: rule -> metric -> paired difference, policy minus rule.
        metrics: of the task.
        judged: names of the metrics that are looked at.
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
    """Say which other rules and baselines the policy is better and worse than, in each of the judged metrics.

    Rules without an interval are left out: they do not have the metric; ceilings, too: they know the answer.

    Args:
        comparison: with ``baseline_arm`` and ``verdicts``, rule -> metric -> verdict.
        metrics: of the task.
        judged: names of the metrics, in their order.
        bar: says which rules are ceilings.
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


def _told(
    arm: str, than: str, entries: Mapping[str, Entry], metrics: Mapping[str, Metric]
) -> list[str]:
    found = changes(entries, metrics)
    looked_at = sum(map(len, found.values()))
    if not looked_at:
        return []
    sentences = []
    for kind in ("worse", "better"):
        named = "; ".join(f"{metrics[name].title} {signed(entries[name])}" for name in found[kind])
        sentences.append(
            f"{arm}, {kind} than {than}, of {looked_at} metrics looked at: {named or 'none shown'}."
        )
    return sentences
