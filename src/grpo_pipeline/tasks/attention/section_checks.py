"""Refuse sections of the attention task that do not go together."""

from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.rewards.params import RewardParams

HEATMAP_LOSSES = ("heatmap", "needle", "mil", "entropy", "heatmap_outline")


def check_sections(model: ModelParams, rewards: RewardParams, supervised: SupervisedParams) -> None:
    """Refuse sections that do not go together.

    Raises:
        ValueError: if points cost a reward that no policy can save, a prompted mask is to be read that nothing teaches, or a
            heatmap that is computed has losses or rewards.
    """
    if rewards.points and model.policy.stop is None:
        raise ValueError(
            "attention.reward.points must be null with attention.model.policy.stop = null, got a value; every set has the same "
            "number of points: give stop a min_points"
        )
    reads_mask = None if model.statistics is None else model.statistics.mask
    if reads_mask == "prompted" and not supervised.outline:
        raise ValueError(
            "attention.model.class_decoder.mask must be null or seeded with attention.supervised_loss.outline = null, got "
            "prompted; nothing teaches the prompted mask: choose another one, or show outlines"
        )
    if model.heatmap is not None:
        _check_nobody_learns_the_heatmap(rewards, supervised)


def _check_nobody_learns_the_heatmap(rewards: RewardParams, supervised: SupervisedParams) -> None:
    sections = {
        "supervised_loss": (supervised.weights, HEATMAP_LOSSES),
        "reward": (rewards.weights, ("heatmap", "activation")),
    }
    for section, (weights, names) in sections.items():
        for name in names:
            if weights[name]:
                raise ValueError(
                    f"attention.{section}.{name} must be null with attention.model.heatmap = evidence, got a value; that heatmap "
                    "is computed and does not learn, nor depend on the points: write null, or heatmap: null in attention.model"
                )
