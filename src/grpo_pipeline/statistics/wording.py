"""Put differences with intervals into sentences, for every task."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_pipeline.statistics.metric import Metric

Entry = Mapping[str, Any]


def judge(entry: Entry, *, above: str, below: str, neutral: float = 0.0) -> str:
    """Choose the words by where the interval lies relative to the neutral value."""
    low, high = entry["ci95"]
    if low > neutral:
        return above
    if high < neutral:
        return below
    return "no difference shown"


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
        if entry is None or entry["ci95"] is None or metric.better == "none":
            continue
        low, high = entry["ci95"]
        sign = (low > 0) - (high < 0)
        kind = (
            "same"
            if sign == 0
            else "better"
            if (sign > 0) == (metric.better == "higher")
            else "worse"
        )
        found[kind].append(name)
    return found


def baseline_sentences(
    comparison: Mapping[str, Any], metrics: Mapping[str, Metric], headline: Sequence[str]
) -> list[str]:
    """Say which other rules and baselines the policy is better and worse than, by the first headline metric.

    Rules without an interval are left out: they do not have the metric.

    Args:
        comparison: with ``baseline_arm`` and ``own_minus_baseline``, rule -> metric -> paired difference.
        metrics: of the task.
        headline: names of the metrics of a short table; the first one judges.
    """
    gaps = comparison.get("own_minus_baseline", {})
    name = next((name for name in headline if metrics[name].better != "none"), None)
    if name is None or not gaps:
        return []
    named: dict[str, list[str]] = {"better": [], "same": [], "worse": []}
    for rule, entries in gaps.items():
        for kind, names in changes({name: entries[name]}, metrics).items():
            named[kind] += [rule] * len(names)
    words = {"better": "better than", "same": "not shown to differ from", "worse": "worse than"}
    told = "; ".join(f"{words[kind]} {', '.join(rules)}" for kind, rules in named.items() if rules)
    if not told:
        return []
    return [
        f"{comparison['baseline_arm']}, its own policy beside what one would try instead, by {metrics[name].title}: {told}."
    ]


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
