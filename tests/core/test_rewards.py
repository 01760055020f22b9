import math

import pytest
import torch

from grpo_pipeline.core.rewards import combine_rewards


def test_weighs_parts_in_float64():
    parts = {"heat": torch.tensor([[-0.2, -0.4]]), "class": torch.tensor([[-1.0, -3.0]])}
    rewards = combine_rewards(parts, {"heat": 0.7, "class": 0.3})
    # 0.7 * -0.2 + 0.3 * -1 = -0.44;  0.7 * -0.4 + 0.3 * -3 = -1.18
    assert rewards.total.dtype == torch.float64
    torch.testing.assert_close(rewards.total, torch.tensor([[-0.44, -1.18]], dtype=torch.float64), atol=1e-7, rtol=0)
    assert rewards.parts["heat"] is parts["heat"]


def test_nan_marks_a_sample_unscored_only_through_a_weighted_part():
    parts = {"a": torch.tensor([[1.0, math.nan]]), "b": torch.tensor([[math.nan, 2.0]])}
    total = combine_rewards(parts, {"a": 1.0, "b": 0.0}).total
    assert total[0, 0] == 1.0
    assert total[0, 1].isnan()


@pytest.mark.parametrize(
    ("part", "weights"),
    [(torch.ones(1, 2), {"b": 1.0}), (torch.ones(1, 2, requires_grad=True), {"a": 1.0}), (torch.ones(1, 2), {"a": 0.0})],
)
def test_refuses_wrong_names_gradients_and_no_weight(part, weights):
    with pytest.raises(ValueError, match="must"):
        combine_rewards({"a": part}, weights)
