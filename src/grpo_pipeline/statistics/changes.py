"""Write which metrics got worse and which got better, in the same words for every task."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.statistics.metric import Metric
from grpo_pipeline.statistics.wording import Entry, signed, tone_of


def change_sentences(
    comparison: Mapping[str, Any], metrics: Mapping[str, Metric], *, chance_rule: str
) -> list[str]:
    """Write for each arm how its metrics differ from the control's, and its gain over the chance rule.

    A metric differs where its paired 95% interval leaves out 0. Worse metrics stand first. If m metrics are compared, about m /
    20 intervals leave out 0 by chance alone; the sentences state m.

    Args:
        comparison: the document with arms, control, differences and, where there is a chance rule, ``policy_gain``.
        metrics: metrics of the task; those without a good direction are left out.
        chance_rule: the rule that ``policy_gain`` is measured against, such as the start.
    """
    sentences = []
    for arm in comparison["arms"]:
        for than, section in (
            (comparison["control"], "differences"),
            (f"the rule {chance_rule}", "policy_gain"),
        ):
            if (entries := comparison.get(section, {}).get(arm)) is not None:
                sentences += _changes_to(arm, than, entries, metrics)
    return sentences


def changes(entries: Mapping[str, Entry], metrics: Mapping[str, Metric]) -> dict[str, list[str]]:
    """Sort the metrics into "worse", "better" and "same" (not shown to differ).

    Metrics without a good direction, and without an interval, are in none of the lists.
    """
    found: dict[str, list[str]] = {"worse": [], "better": [], "same": []}
    for name, metric in metrics.items():
        entry = entries.get(name)
        if entry is not None and (kind := tone_of(entry, metric.better)):
            found[kind].append(name)
    return found


def _changes_to(
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
