"""Plain sentences about a comparison document, each read off an interval; nothing here looks at more than the numbers."""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.tasks.verdict_words import Entry, judge, signed


def verdict(comparison: Mapping[str, Any]) -> list[str]:
    """Say for every arm whether its points beat uniform ones, fall into lesions, matter, and change the AUROC.

    Args:
        comparison: the document of docs/metrics.md, without its verdict.
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
    return sentences + oracle_sentences(comparison)


def reward_sentence(arm: str, gain: Entry | None) -> str:
    """Say whether the learned policy earns more reward than uniform points with the same decoder."""
    if gain is None:
        return f"{arm}: reward against uniform points: not measured."
    if gain["ci95"] is None:
        return f"{arm}: reward against uniform points: no statement ({gain['reason']})."
    ending = judge(gain, above="the policy has learned from reward", below="the policy is worse than chance")
    return f"{arm}: with the same decoder, the policy's points earn {signed(gain)} reward over uniform points: {ending}."


def lesion_sentence(arm: str, ratio: Entry) -> str:
    """Say how often points fall into lesions compared with uniform points (ratio 1)."""
    if ratio["ci95"] is None:
        return f"{arm}: points in lesions against uniform points: no statement ({ratio['reason']})."
    low, high = ratio["ci95"]
    ending = judge(ratio, above="the attention finds lesions", below="the attention avoids lesions", neutral=1.0)
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
