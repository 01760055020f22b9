"""Say in plain sentences how the arms compare, each read off an interval; nothing here looks at more than the numbers."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.statistics.wording import Entry, judge, signed


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
