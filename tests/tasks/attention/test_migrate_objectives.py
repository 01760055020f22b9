from typing import Any

import pytest
from tiny_attention import section

from grpo_pipeline.migrate import is_old, migrate
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.migrate_objectives import REWARD, SUPERVISED_LOSS, migrate_reward, migrate_supervised_loss
from grpo_pipeline.tasks.attention.rewards.params import RewardParams

# Whole sections with nothing at its default.
FLAT_REWARD = {
    "class_weight": 0.7, "heatmap_weight": 0.3, "diversity_weight": 0.5, "activation_weight": 0.2, "boundary_weight": 0.4,
    "boundary_margin": 0.2, "points_weight": 0.05, "dice_weight": 1.5, "cspca_weight": 2.0, "cspca_min_grade": 4,
}  # fmt: skip
FLAT_LOSS = {
    "samples": "best", "class_weight": 0.9, "class_form": "symmetric", "heatmap_weight": 0.8, "needle_weight": 0.1,
    "needle_form": "symmetric", "needle_positive_weight": 3.0, "mil_weight": 0.2, "mil_share": 0.05, "mil_on": "cells",
    "entropy_weight": 0.3, "glimpse_weight": 0.6, "class_penalty": 0.002, "location_weight": 0.4, "mask_share": 0.5,
    "outline_weight": 0.11, "heatmap_outline_weight": 0.12,
}  # fmt: skip


def test_a_whole_section_keeps_every_number():
    reward = RewardParams.model_validate(migrate_reward(FLAT_REWARD))
    assert reward.model_dump() == {
        "class": {"weight": 0.7}, "heatmap": {"weight": 0.3}, "diversity": {"weight": 0.5}, "activation": {"weight": 0.2},
        "boundary": {"weight": 0.4, "margin": 0.2}, "points": {"weight": 0.05}, "dice": {"weight": 1.5},
        "priority": {"weight": 2.0, "min_grade": 4},
    }  # fmt: skip
    loss = SupervisedParams.model_validate(migrate_supervised_loss(FLAT_LOSS))
    assert loss.model_dump() == {
        "samples": "best", "mask_share": 0.5, "class": {"weight": 0.9, "form": "symmetric"}, "heatmap": {"weight": 0.8},
        "needle": {"weight": 0.1, "form": "symmetric", "positive_weight": 3.0},
        "mil": {"weight": 0.2, "share": 0.05, "instances": "cells"}, "entropy": {"weight": 0.3}, "glimpse": {"weight": 0.6},
        "ridge": {"weight": 0.002}, "location": {"weight": 0.4}, "outline": {"weight": 0.11}, "heatmap_outline": {"weight": 0.12},
    }  # fmt: skip


DEFAULT_REWARD = dict.fromkeys(FLAT_REWARD, 0.0) | {
    "class_weight": 1.0, "boundary_margin": 0.1, "cspca_weight": 1.0, "cspca_min_grade": 3,
}  # fmt: skip
DEFAULT_LOSS = {name: 0.0 for name, value in FLAT_LOSS.items() if isinstance(value, float)} | {
    "samples": "all", "class_weight": 1.0, "class_form": "cross_entropy", "heatmap_weight": 1.0, "needle_form": "cross_entropy",
    "needle_positive_weight": 1.0, "mil_share": 0.2, "mil_on": "pixels", "glimpse_weight": 1.0, "mask_share": None,
}  # fmt: skip


def test_the_defaults_of_before_are_those_of_today():
    reward, loss = migrate_reward(DEFAULT_REWARD), migrate_supervised_loss(DEFAULT_LOSS)
    assert RewardParams.model_validate(reward) == RewardParams.model_validate(section("reward"))
    assert SupervisedParams.model_validate(loss) == SupervisedParams.model_validate(section("supervised_loss"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"mil_weight": 1.0, "mil_share": 0.05}, {"mil": {"weight": 1.0, "share": 0.05}}),
        ({"mil_share": 0.05}, {"mil": {"share": 0.05}}),
        ({"heatmap_weight": 0.0, "class_penalty": 0.0}, {"heatmap": None, "ridge": None}),
        ({"needle_weight": 0.0, "needle_form": "cross_entropy", "needle_positive_weight": 1.0}, {"needle": None}),
        ({"mask_share": 0.1, "samples": "one"}, {"mask_share": 0.1, "samples": "one"}),
        ({"glimpse": None, "class": {"weight": 2.0}}, {"glimpse": None, "class": {"weight": 2.0}}),
    ],
)
def test_a_change_of_a_base_stays_a_change(old: dict[str, Any], new: dict[str, Any]):
    assert migrate_supervised_loss(old) == new


def test_keys_beside_a_weight_of_0_are_left_for_a_run_to_refuse():
    """Where another file gives the weight, the key must not be lost."""
    found = migrate_supervised_loss({"mil_weight": 0.0, "mil_share": 0.05, "mil_on": "pixels"})
    assert found == {"mil": {"share": 0.05}}
    with pytest.raises(ValueError, match=r"mil\.weight\n.*Field required"):
        SupervisedParams.model_validate(section("supervised_loss", **found))
    assert migrate_reward({"cspca_weight": 1.0, "cspca_min_grade": 4}) == {"priority": {"min_grade": 4}}


def test_sections_inside_arms_and_candidates_are_found():
    old = {
        "compare": {"arms": {"no_dice": {"base": "grpo", "set": {"reward": {"dice_weight": 0.0}}}}},
        "cross_validation": {"candidates": {"plain": {}, "heatmap": {"supervised_loss": {"heatmap_weight": 2.0}}}},
        "mine": {"base": "grpo", "reward": {"class_weight": 0.5}, "algorithm": {"losses": {"kl": None}}},
    }
    assert migrate({"attention": old}) == {
        "attention": {
            "compare": {"arms": {"no_dice": {"base": "grpo", "set": {"reward": {"dice": None}}}}},
            "cross_validation": {"candidates": {"plain": {}, "heatmap": {"supervised_loss": {"heatmap": {"weight": 2.0}}}}},
            "mine": {"base": "grpo", "reward": {"class": {"weight": 0.5}}, "algorithm": {"losses": {"kl": None}}},
        }
    }


@pytest.mark.parametrize(("section", "names"), [("reward", REWARD), ("supervised_loss", SUPERVISED_LOSS)])
def test_an_old_name_is_known_as_one(section: str, names: dict[str, Any]):
    assert all(is_old(f"attention.{section}.{name}") for name in names)
    assert not is_old(f"attention.{section}.class")
