"""Write the findings of a comparison: did the reward rise, are the molecules valid, are they still different?"""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.statistics.wording import Entry, judge, signed

COMPARED = {
    "reward": "reward",
    "validity": "validity",
    "vun": "share of valid, unique and novel molecules",
}


def summary(comparison: Mapping[str, Any], *, min_uniqueness: float) -> list[str]:
    """Write for each arm the metrics that rose against the control and the start, and whether its molecules still differ.

    Args:
        comparison: the document of docs/metrics.md, without its summary.
        min_uniqueness: a lower share of different molecules among the valid ones is called a collapse.
    """
    control = comparison["control"]
    sentences = []
    for arm, scores in comparison["arms"].items():
        if arm != control:
            sentences += [
                difference_sentence(
                    arm, comparison["differences"][arm][name], what=what, than=control
                )
                for name, what in COMPARED.items()
            ]
        gain = comparison["policy_gain"].get(arm)
        if gain is not None:
            sentences += [
                difference_sentence(
                    arm, gain[name], what=what, than="the model before this training"
                )
                for name, what in COMPARED.items()
            ]
        sentences += variety_sentences(arm, scores["metrics"], min_uniqueness=min_uniqueness)
    return sentences


def difference_sentence(arm: str, difference: Entry, *, what: str, than: str) -> str:
    """Write whether a metric differs from the control's or the start's."""
    if difference["ci95"] is None:
        return f"{arm}: {what} against {than}: no statement ({difference['reason']})."
    ending = judge(difference, above=f"higher than {than}", below=f"lower than {than}")
    against = "" if than in ending else f" against {than}"
    return f"{arm}: {what}{against} {signed(difference)}: {ending}."


def variety_sentences(
    arm: str, metrics: Mapping[str, Entry], *, min_uniqueness: float
) -> list[str]:
    """Write the shares of different and new molecules, and warn if few of them earn the reward."""
    uniqueness, novelty = metrics["uniqueness"], metrics["novelty"]
    if uniqueness["value"] is None or novelty["value"] is None:
        return [
            f"{arm}: uniqueness and novelty: no statement ({uniqueness.get('reason') or novelty.get('reason')})."
        ]
    sentences = [
        f"{arm}: of its valid molecules {uniqueness['value']:.1%} are different ones; of those, {novelty['value']:.1%} are "
        "not in the training set."
    ]
    if uniqueness["value"] < min_uniqueness:
        sentences.append(
            f"{arm}: WARNING: fewer than {min_uniqueness:.0%} of its valid molecules are different: it repeats what pays, and "
            "means over its molecules rest on few of them."
        )
    return sentences
