"""Which samples of a group teach, and how much: the node's numbers worked out by hand."""

from types import SimpleNamespace

import pytest
import torch
from tiny_attention import algorithm_params

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.types import Credits
from grpo_pipeline.pipelines.step.advantages import compute_advantages
from grpo_pipeline.pipelines.step.parts.replay import weigh_samples

F64 = torch.float64
TOTALS = torch.tensor([[1.0, 4.0, 2.0, 3.0], [0.0, 0.0, 5.0, 1.0]], dtype=F64)
# Each reward minus the mean of its group, 2.5 and 1.5; in each group the two samples with the highest reward are kept.
KEPT = [[0.0, 1.5, 0.0, 0.5], [0.0, 0.0, 3.5, -0.5]]


def task(weights: torch.Tensor | None) -> SimpleNamespace:
    return SimpleNamespace(prompt_weights=lambda batch: weights)


def advantages(
    *, weights: torch.Tensor | None = None, importance: torch.Tensor | None = None, **advantage: object
) -> torch.Tensor:
    algorithm = algorithm_params(advantage={"method": "mean_only", "top_k_ratio": 0.5} | advantage)
    rewards = combine_rewards({"hit": TOTALS}, {"hit": 1.0})
    found = compute_advantages(algorithm, task(weights), None, rewards, None)
    return (found if importance is None else weigh_samples(found, importance)).values


def test_the_best_samples_of_a_group_teach_and_the_others_do_not() -> None:
    assert advantages().tolist() == KEPT
    assert advantages(top_k_ratio=1.0).tolist() == [[-1.5, 1.5, -0.5, 0.5], [-1.5, -1.5, 3.5, -0.5]]
    assert advantages(top_k_ratio=0.75)[0].tolist() == [0.0, 1.5, -0.5, 0.5]
    assert advantages(top_k_ratio=0.25).tolist() == [[0.0, 1.5, 0.0, 0.0], [0.0, 0.0, 3.5, 0.0]]


def test_weights_of_prompts_and_of_replayed_samples_come_after_the_choice() -> None:
    importance = torch.tensor([[1.0, 0.5, 1.0, 1.0], [1.0, 1.0, 1.0, 2.0]])
    found = advantages(weights=torch.tensor([2.0, 0.5]), importance=importance)
    assert found.tolist() == [[0.0, 1.5, 0.0, 1.0], [0.0, 0.0, 1.75, -0.5]]


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_of_credited_decisions_those_of_the_best_samples_teach(ratio: float) -> None:
    """Samples are chosen by their reward, and not the credit of a decision."""
    credits = torch.tensor([[[4.0, 0.0], [0.0, 0.0], [0.0, 2.0], [0.0, 2.0]]] * 2, dtype=F64)
    rewards = combine_rewards({"hit": TOTALS}, {"hit": 1.0})
    credited = Credits(credits, torch.ones_like(credits, dtype=torch.bool))
    algorithm = algorithm_params(advantage={"method": "mean_only", "credit": "marginal", "top_k_ratio": ratio})
    given = SimpleNamespace(**{**vars(rewards), "credits": credited})
    found = compute_advantages(algorithm, task(None), None, given, None).values
    # Of each decision its credit minus the mean over the samples, 1 and 1.
    everything = [[3.0, -1.0], [-1.0, -1.0], [-1.0, 1.0], [-1.0, 1.0]]
    nothing = [0.0, 0.0]
    best = [[nothing, everything[1], nothing, everything[3]], [nothing, nothing, everything[2], everything[3]]]
    assert found.tolist() == (best if ratio < 1 else [everything] * 2)
