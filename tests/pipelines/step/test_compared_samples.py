"""How samples are compared, as an arm asks for it: by lengths, by the best of k, within a bound."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_attention import algorithm_params

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.step.advantages import compute_advantages
from grpo_pipeline.pipelines.step.parts.replay import weigh_samples

F64 = torch.float64
TOTALS = torch.tensor([[0.0, 1.0, 5.0]], dtype=F64)
LENGTHS = torch.tensor([[1, 2, 7]])


def advantages(importance: torch.Tensor | None = None, **advantage: Any) -> list[float]:
    is_valid = torch.arange(7) < LENGTHS[..., None]  # [P, G, L]
    rollouts = Rollouts(torch.zeros(1, 3, 7, dtype=torch.long), torch.zeros(1, 3, 7, dtype=F64), is_valid)
    algorithm, task = algorithm_params(advantage=advantage), SimpleNamespace(prompt_weights=lambda batch: None)
    rewards = combine_rewards({"hit": TOTALS}, {"hit": 1.0})
    found = compute_advantages(algorithm, task, None, rewards, rollouts)
    return (found if importance is None else weigh_samples(found, importance)).values[0].tolist()


def test_samples_are_compared_as_the_method_says() -> None:
    # (1 * 0 + 2 * 1 + 7 * 5) / 10 = 3.7; of two samples the best: 2 * (1 / 2), 2 * ((5 - 0) + (5 - 1)) / 2
    assert advantages(method="opo") == pytest.approx([-3.7, -2.7, 1.3])
    assert advantages(method="pass_at_k", k=2) == [0.0, 1.0, 9.0]
    assert advantages(method="pass_at_k", k=3) == [0.0, 0.0, 12.0]


def test_the_clip_bounds_what_was_compared_and_not_the_weights_that_come_after() -> None:
    assert advantages(method="mean_only") == [-2.0, -1.0, 3.0]
    assert advantages(method="mean_only", clip=1.5) == [-1.5, -1.0, 1.5]
    weights = torch.tensor([[1.0, 2.0, 3.0]])
    assert advantages(weights, method="mean_only", clip=1.5) == [-1.5, -2.0, 4.5]
