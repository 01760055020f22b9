"""Refuse sections of the attention task that do not go together."""

from grpo_pipeline.tasks.attention.model_params import ModelParams
from grpo_pipeline.tasks.attention.reward_params import RewardParams
from grpo_pipeline.tasks.attention.supervised_params import SupervisedParams

HEATMAP_LOSSES = (
    "heatmap_weight",
    "needle_weight",
    "mil_weight",
    "entropy_weight",
    "heatmap_outline_weight",
)


def check_sections(model: ModelParams, rewards: RewardParams, supervised: SupervisedParams) -> None:
    """Refuse sections that do not go together.

    Raises:
        ValueError: if points cost a reward that no policy can save, a prompted mask is to be read that nothing teaches, or a
            heatmap that is computed has losses or rewards.
    """
    if rewards.points_weight and model.stop is None:
        raise ValueError(
            f"attention.reward.points_weight must be 0 with attention.model.stop = null, got {rewards.points_weight}; every set "
            "has the same number of points: give stop a min_points"
        )
    if model.reads_mask == "prompted" and not supervised.outline_weight:
        raise ValueError(
            "attention.model.reads_mask must be none or seeded with attention.supervised_loss.outline_weight = 0, got prompted; "
            "nothing teaches the prompted mask: choose another one, or show outlines"
        )
    if model.heatmap == "evidence":
        _check_nobody_learns_the_heatmap(rewards, supervised)


def _check_nobody_learns_the_heatmap(rewards: RewardParams, supervised: SupervisedParams) -> None:
    sections = {
        "supervised_loss": (supervised, HEATMAP_LOSSES),
        "reward": (rewards, ("heatmap_weight", "activation_weight")),
    }
    for section, (params, names) in sections.items():
        for name in names:
            if weight := getattr(params, name):
                raise ValueError(
                    f"attention.{section}.{name} must be 0 with attention.model.heatmap = evidence, got {weight:g}; that heatmap "
                    "is computed and does not learn, nor depend on the points: set it to 0, or use heatmap: decoder"
                )
