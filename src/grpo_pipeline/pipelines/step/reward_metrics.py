"""Measure the rewards of a batch, and which of their parts teach nothing."""

from collections.abc import Mapping

import torch
from torch import Tensor

from grpo_pipeline.core.types import Credits
from grpo_pipeline.pipelines.step.experience import Experience

# Places of a sample whose mean credit is a metric of its own.
CREDITED_PLACES = 16


def silent_rewards(experience: Experience) -> dict[str, float]:
    """Say which weighted reward components are the same for all samples of every group: they cancel and teach nothing.

    Nothing is said of samples that were not scored, such as those of an arm that draws none.
    """
    parts, weights = experience.rewards.components, experience.rewards.weights
    draws_nothing = experience.rollouts.actions.shape[2] == 0
    if draws_nothing or bool(experience.rewards.total.isnan().all()):
        return {}
    return {
        f"dead/reward_{name}": float(_widest(part) == 0)
        for name, part in parts.items()
        if weights.get(name)
    }


def reward_metrics(experience: Experience) -> dict[str, Tensor | float]:
    """Return what is known of the rewards; where no sample was scored, that their mean is not a number."""
    rewards = experience.rewards
    if bool(rewards.total.isnan().all()):
        return {"reward/mean": torch.nan, "temperature": experience.temperature}
    metrics: dict[str, Tensor | float] = {
        "reward/mean": rewards.total.nanmean(),
        "reward/std": _spread(rewards.total),
        "reward/ties_fraction": experience.advantages.is_tied.double().mean(),
        "advantage/abs_mean": experience.advantages.values.abs().mean(),
        "temperature": experience.temperature,
    }
    metrics |= dict(experience.resampling) | _component_metrics(rewards.components)
    return metrics | _credit_metrics(rewards.credits)


def _component_metrics(parts: Mapping[str, Tensor]) -> dict[str, Tensor | float]:
    metrics: dict[str, Tensor | float] = {}
    for name, part in parts.items():
        metrics |= {f"reward/{name}/mean": part.nanmean(), f"reward/{name}/std": _spread(part)}
        if bool((unscored := part.isnan()).any()):
            metrics |= {
                f"reward/{name}/unscored_fraction": unscored.double().mean(),
                f"reward/{name}/unscored_count": unscored.double().sum(),
            }
    return metrics


def _credit_metrics(credits: Credits | None) -> dict[str, Tensor | float]:
    """Return the mean credit of the decisions, or turns, that were taken at each place of a sample, of the first places."""
    if credits is None:
        return {}
    taken = credits.values.masked_fill(~credits.is_valid, torch.nan).nanmean((0, 1))  # [K]
    unit = "decision" if credits.turns is None else "turn"
    return {f"credit/{unit}_{place}": x for place, x in enumerate(taken[:CREDITED_PLACES])}


def _widest(x: Tensor) -> Tensor:
    """Return the largest difference within a group, [P, G] -> scalar, without rounding; NaN was not scored."""
    # Largest and smallest of each group are [P]; a group without a score is -inf - inf, clamped to 0.
    lost = x.isnan()
    return (
        (x.masked_fill(lost, -torch.inf).amax(1) - x.masked_fill(lost, torch.inf).amin(1))
        .clamp(min=0)
        .max()
    )


def _spread(x: Tensor) -> Tensor:
    """Return the mean over prompts of the standard deviation within a group, [P, G] -> scalar; NaN was not scored."""
    squares = (x - x.nanmean(1, keepdim=True)).square().nansum(1)  # [P]
    return (squares / ((~x.isnan()).sum(1) - 1).clamp(min=1)).sqrt().mean()
