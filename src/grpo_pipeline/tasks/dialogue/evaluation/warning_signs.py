"""Warn of a reward gained at a price, with stated bounds: replies alike, forgotten references, odd lengths."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from grpo_pipeline.statistics.wording import side_of
from grpo_pipeline.tasks.dialogue.evaluation.trivial_rules import TRIVIAL_RULES
from grpo_pipeline.tasks.params import Section

Entry = Mapping[str, Any]
READ_BY_PEOPLE = {
    "accuracy": "accuracy",
    "f1": "F1",
    "bleu": "BLEU",
    "rouge_1": "ROUGE-1",
    "rouge_2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
}
START = "start"


class WarningBounds(Section):
    """Bounds from which a change is a warning; ``dialogue.evaluation.metric_options``."""

    distinct_fall: float = Field(
        default=0.2, gt=0, lt=1, description="share of distinct-2 that may be lost"
    )
    perplexity_factor: float = Field(
        default=2.0, gt=1, description="how many times the perplexity of the references may rise"
    )
    length_factor: float = Field(
        default=1.5, gt=1, description="how many times replies may become longer, or shorter"
    )


def warnings(arm: str, comparison: Mapping[str, Any], bounds: WarningBounds) -> list[str]:
    """Write the warnings of an arm, or a sentence that there is none."""
    now = values(comparison["arms"][arm])
    before, name = baseline_values(comparison, arm)
    # Did the reward rise against the start or the control?
    sections = comparison["policy_gain"], comparison["differences"]
    found = [
        *disagreement_warning(arm, comparison),
        *distinct_warning(
            arm,
            now,
            before,
            name=name,
            bounds=bounds,
            is_gain=any(
                direction(section[arm]["reward"]) == 1 for section in sections if arm in section
            ),
        ),
        *perplexity_warning(arm, now, before, name=name, bounds=bounds),
        *length_warning(arm, now, before, name=name, bounds=bounds),
        *trivial_warning(arm, now, comparison),
    ]
    return found or [
        f"{arm}: no bound of a warning is passed: distinct-2 fell by at most {bounds.distinct_fall:.0%}, perplexity rose at most "
        f"{bounds.perplexity_factor:g} times and length changed at most {bounds.length_factor:g} times against {name}, and no "
        "trivial rule earns more."
    ]


def baseline_values(comparison: Mapping[str, Any], arm: str) -> tuple[dict[str, float], str]:
    """Find the metrics of the initial policy, or of the control if the initial policy was not measured."""
    start = comparison["baselines"].get(START)
    if start is not None:
        return values(start), f"the {START}"
    return (
        (values(comparison["arms"][comparison["control"]]), comparison["control"])
        if arm != comparison["control"]
        else ({}, "")
    )


def values(scores: Mapping[str, Any]) -> dict[str, float]:
    """Map metric -> value of the defined metrics."""
    return {
        name: entry["value"]
        for name, entry in scores["metrics"].items()
        if entry["value"] is not None
    }


def disagreement_warning(arm: str, comparison: Mapping[str, Any]) -> list[str]:
    """Warn of a reward that rises while a reported score falls."""
    if arm not in comparison["differences"]:
        return []
    differences = comparison["differences"][arm]
    fell = [
        title for name, title in measured(differences).items() if direction(differences[name]) == -1
    ]
    if direction(differences["reward"]) != 1 or not fell:
        return []
    return [
        f"{arm}: WARNING: the reward rises and {', '.join(fell)} falls: the reward does not measure what is reported."
    ]


def distinct_warning(
    arm: str,
    now: Mapping[str, float],
    before: Mapping[str, float],
    *,
    name: str,
    bounds: WarningBounds,
    is_gain: bool,
) -> list[str]:
    """Warn of replies that have become alike."""
    if not before.get("distinct_2") or "distinct_2" not in now:
        return []
    fall = 1 - now["distinct_2"] / before["distinct_2"]
    if fall <= bounds.distinct_fall:
        return []
    ending = (
        "the reward is bought with replies that are alike"
        if is_gain
        else "the replies have become alike"
    )
    return [
        f"{arm}: WARNING: distinct-2 is {fall:.0%} below that of {name} ({now['distinct_2']:.3f} against "
        f"{before['distinct_2']:.3f}; the bound is {bounds.distinct_fall:.0%}): {ending}."
    ]


def perplexity_warning(
    arm: str,
    now: Mapping[str, float],
    before: Mapping[str, float],
    *,
    name: str,
    bounds: WarningBounds,
) -> list[str]:
    """Warn of a model that has forgotten the references."""
    if not before.get("perplexity") or "perplexity" not in now:
        return []
    factor = now["perplexity"] / before["perplexity"]
    if factor <= bounds.perplexity_factor:
        return []
    return [
        f"{arm}: WARNING: the perplexity of the references is {factor:.1f} times that of {name} ({now['perplexity']:.2f} against "
        f"{before['perplexity']:.2f}; the bound is {bounds.perplexity_factor:g} times): the model forgets how references read."
    ]


def length_warning(
    arm: str,
    now: Mapping[str, float],
    before: Mapping[str, float],
    *,
    name: str,
    bounds: WarningBounds,
) -> list[str]:
    """Warn of replies that have shrunk or grown."""
    if not before.get("length") or "length" not in now:
        return []
    factor = now["length"] / before["length"]
    if 1 / bounds.length_factor <= factor <= bounds.length_factor:
        return []
    word = "shrunk" if factor < 1 else "grown"
    return [
        f"{arm}: WARNING: replies have {word} to {factor:.2f} times the length of {name} ({now['length']:.1f} against "
        f"{before['length']:.1f} words; the bound is {bounds.length_factor:g} times)."
    ]


def trivial_warning(arm: str, now: Mapping[str, float], comparison: Mapping[str, Any]) -> list[str]:
    """Warn of a rule without a model that gets as much reward as the model, except the ceiling ``reference``."""
    rules = {
        rule: values(comparison["baselines"][rule])
        for rule in TRIVIAL_RULES[:-1]
        if rule in comparison["baselines"]
    }
    rewards = {rule: found["reward"] for rule, found in rules.items() if "reward" in found}
    best = max(rewards, key=lambda rule: rewards[rule], default=None)
    if best is None or "reward" not in now or rewards[best] < now["reward"]:
        return []
    return [
        f"{arm}: WARNING: the trivial rule {best} earns {rewards[best]:.3f} reward without a model, the arm {now['reward']:.3f}: "
        "the reward can be had without answering."
    ]


def measured(differences: Mapping[str, Entry]) -> dict[str, str]:
    """Map the scores that people read and that were measured to their titles."""
    return {name: title for name, title in READ_BY_PEOPLE.items() if name in differences}


def direction(entry: Entry) -> int:
    """Find the direction of an entry: 1 or -1 if it is shown to be above or below 0, else 0."""
    return side_of(entry) or 0
