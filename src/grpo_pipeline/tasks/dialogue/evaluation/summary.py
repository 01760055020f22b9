"""Write the findings of a comparison: did the reward rise, did the reported scores rise with it, and at what price?"""

from collections.abc import Mapping
from typing import Any

from grpo_pipeline.statistics.wording import signed
from grpo_pipeline.tasks.dialogue.evaluation.warning_signs import (
    START,
    Entry,
    WarningBounds,
    direction,
    measured,
    warnings,
)


def summary(comparison: Mapping[str, Any], *, bounds: WarningBounds) -> list[str]:
    """Write for each arm how its reward and its scores changed, and the warnings about them.

    Args:
        comparison: the document of docs/metrics.md, without its summary.
        bounds: bounds of the warnings.
    """
    control = comparison["control"]
    sentences = []
    for arm in comparison["arms"]:
        if arm != control:
            differences = comparison["differences"][arm]
            sentences.append(reward_sentence(arm, differences["reward"], than=control))
            sentences.append(scores_sentence(arm, differences, than=control))
        gain = comparison["policy_gain"].get(arm, {}).get("reward")
        if gain is not None:
            sentences.append(reward_sentence(arm, gain, than=f"the {START}"))
        sentences += warnings(arm, comparison, bounds)
    return sentences


def reward_sentence(arm: str, difference: Entry, *, than: str) -> str:
    """Write whether sampled replies get more reward than the control's or the start's."""
    if difference["ci95"] is None:
        return f"{arm}: reward against {than}: no statement ({difference['reason']})."
    ending = {1: f"more than {than}", -1: f"less than {than}", 0: "no difference shown"}[
        direction(difference)
    ]
    return f"{arm}: its replies earn {signed(difference)} reward against {than}: {ending}."


def scores_sentence(arm: str, differences: Mapping[str, Entry], *, than: str) -> str:
    """Write which of the reported scores changed with the reward."""
    titles = measured(differences)
    rose, fell = (
        [title for name, title in titles.items() if direction(differences[name]) == sign]
        for sign in (1, -1)
    )
    still = [title for title in titles.values() if title not in rose + fell]
    parts = [
        f"{', '.join(titles)} {words}"
        for titles, words in ((rose, "higher"), (fell, "lower"), (still, "not shown to differ"))
        if titles
    ]
    return f"{arm}: against {than}: {'; '.join(parts)}."
