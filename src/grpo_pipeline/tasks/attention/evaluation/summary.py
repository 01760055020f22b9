"""Say in plain sentences how the arms compare, each read off an interval; nothing here looks at more than the numbers."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.statistics.wording import Entry, judge, signed

WITHOUT_POINTS = "none"
"""The rule of an arm that has no points at all, in training and in evaluation."""


def summary(comparison: Mapping[str, Any]) -> list[str]:
    """Say for every arm whether its points beat those of its start, fall into lesions, matter, and change the AUROC.

    Args:
        comparison: the document of docs/metrics.md, without its summary.
    """
    control = comparison["control"]
    sentences: list[str] = []
    for arm, scores in comparison["arms"].items():
        if arm == control:
            continue
        if comparison["rules"][arm] != WITHOUT_POINTS:
            sentences += point_sentences(arm, scores["metrics"], comparison)
        sentences.append(
            auroc_sentence(arm, comparison["differences"][arm]["auroc"], control=control)
        )
    return [
        *sentences,
        *pointless_sentences(comparison),
        *reader_sentences(comparison),
        *oracle_sentences(comparison),
        *outline_sentences(comparison),
    ]


def point_sentences(
    arm: str, metrics: Mapping[str, Entry], comparison: Mapping[str, Any]
) -> list[str]:
    """Say what the points of one arm are worth, where they fall, and whether any prediction reads them."""
    shift = metrics["prompt_sensitivity_images"]
    gains = comparison["policy_gain"].get(arm, {})
    has_moved = comparison.get("moved", {}).get(arm, True)
    lesions = lesion_sentence(
        arm,
        metrics["lesion_hit_ratio"],
        gain=gains.get("lesion_hit_ratio"),
        has_moved=has_moved,
        is_read=not is_zero(shift),
    )
    # Points that are those of the start earn what those earn.
    rewards = [reward_sentence(arm, gains.get("reward"))] if has_moved else []
    return [*rewards, lesions, sensitivity_sentence(arm, shift)]


def is_zero(shift: Entry) -> bool:
    """Decide whether no prediction moves by more than rounding when the points of another core are used."""
    return shift["value"] is not None and shift["value"] < 1e-6


def pointless_sentences(comparison: Mapping[str, Any]) -> list[str]:
    """Say what points are worth: beside an arm without any, or beside a decoder that says nothing without them.

    Where neither is known, say how it can be.
    """
    arm = comparison["baseline_arm"]
    without = [name for name, rule in comparison["rules"].items() if rule == WITHOUT_POINTS]
    if comparison["rules"][arm] == WITHOUT_POINTS:
        return []
    sentences = []
    for name in without:
        difference = comparison["own_minus_arms"][name]["auroc"]
        if difference["ci95"] is None:
            said = f"no statement ({difference['reason']})"
        else:
            above, below = "points help", "points harm"
            said = f"{signed(difference)}: {judge(difference, above=above, below=below)}"
        sentences.append(f"{arm}: AUROC minus that of {name}, an arm without any points: {said}.")
    if without:
        return sentences
    withheld = comparison["baselines"].get(WITHOUT_POINTS, {}).get("metrics", {}).get("auroc")
    if withheld is None or withheld["value"] is None:
        return []
    if withheld["value"] == 0.5 and withheld.get("se", 0.0) == 0:
        return [
            f"{arm}: without points its decoder says the same of every core, as an arm trained without points would."
        ]
    return [
        "No arm without points was trained: whether points help is not known "
        "(attention.arms with nothing among them trains one)."
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
    """Say whether the policy's points earn more reward than those that it began with, under the same decoder."""
    if gain is None:
        return f"{arm}: reward against the points of its start: not measured."
    if gain["ci95"] is None:
        return f"{arm}: reward against the points of its start: no statement ({gain['reason']})."
    ending = judge(gain, above="its points are better", below="its points are worse")
    return f"{arm}: with the same decoder, its points earn {signed(gain)} reward over those that it began with: {ending}."


def lesion_sentence(
    arm: str, ratio: Entry, *, gain: Entry | None, has_moved: bool, is_read: bool
) -> str:
    """Say how often points fall into lesions compared with uniform points (ratio 1), and whether that was learned.

    Args:
        arm: its name.
        ratio: of its policy's points.
        gain: that ratio minus the ratio of the points that it began with; None where it is not measured.
        has_moved: whether its policy chooses otherwise than at its start.
        is_read: whether any prediction reads the points.
    """
    if ratio["ci95"] is None:
        return f"{arm}: points in lesions against uniform points: no statement ({ratio['reason']})."
    low, high = ratio["ci95"]
    times = f"{ratio['value']:.1f} times as often as uniform points (95% interval {low:.1f} to {high:.1f})"
    if not has_moved:
        ending = "a fixed detector, not learned"
    elif gain is None or gain["ci95"] is None:
        ending = "beside its start: no statement"
    else:
        start = ratio["value"] - gain["value"]
        than = f"those of its start {start:.1f} times"
        told = judge(gain, above="more often than those", below="less often than those")
        ending = f"{than}: {told}"
    unread = "" if is_read else " No prediction reads them."
    return f"{arm}: points fall into lesions {times}; {ending}.{unread}"


def sensitivity_sentence(arm: str, shift: Entry) -> str:
    """Say how far the probability moves when the points of another core are used."""
    if shift["value"] is None:
        return f"{arm}: effect of another core's points: no statement ({shift['reason']})."
    if is_zero(shift):
        return (
            f"{arm}: its decoder reads no point: with another core's points no probability moves."
        )
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
    """Say whether lesion outlines supervised the model; nothing where none did and the held-out cores have none."""
    metrics = comparison["arms"][comparison["control"]]["metrics"]
    share = metrics.get("outlined_share", {}).get("value")
    if share is None:
        return []
    if share == 0:
        said = "No lesion outline supervised the heatmap; titles say which metrics read the outlines of held-out cores."
        return [said] * bool(metrics["lesion_hit"]["n"])
    if "dice" in metrics:
        return [
            f"The lesion outline of {share:.0%} of the training cores was shown to losses and rewards: this is no learning from "
            "labels alone. No outline of a held-out core was; titles say which metrics read those."
        ]
    return [
        f"The lesion outline of {share:.0%} of the training cores supervised the heatmap: this is no learning from labels alone. "
        "Figures of the heatmap in the bag average over the outline of the held-out core, and detect nothing."
    ]
