from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from tiny_attention import algorithm_params, make_batch, make_examples, make_task, section

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.pipelines.step import collect
from grpo_pipeline.pipelines.step.collect import Baseline
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionData
from grpo_pipeline.tasks.attention.params import RewardParams

NAN = float("nan")
REWARDS = torch.tensor([[0.0, 1.0, 2.0, 4.0], [-3.0, -1.0, -1.0, 0.5]])


def graded(*grades: float) -> AttentionBatch:
    return replace(make_batch(make_task(), tuple(range(len(grades)))), grade_group=torch.tensor(grades))


def advantages(weight: float, rewards: torch.Tensor = REWARDS, importance: torch.Tensor | None = None) -> torch.Tensor:
    """Advantages of a significant cancer (row 0) and of another core (row 1)."""
    task = make_task(reward={"cspca_weight": weight})
    ones = torch.ones(2, 4) if importance is None else importance
    named = combine_rewards({"class": rewards}, {"class": 1.0})
    return collect.compute_advantages(algorithm_params(), task, graded(4, 1), named, Baseline(None), ones).values


def test_high_grades_weigh_more_and_unknown_ones_do_not():
    task = make_task(reward={"cspca_weight": 2.5})
    assert task.prompt_weights(graded(0, 2, 3, 5, NAN)).tolist() == [1.0, 1.0, 2.5, 2.5, 1.0]
    from_2 = make_task(reward={"cspca_weight": 0.5, "cspca_min_grade": 2})
    assert from_2.prompt_weights(graded(0, 2, 3, 1, NAN)).tolist() == [1.0, 0.5, 0.5, 1.0, 1.0]


def test_the_grade_comes_from_the_table():
    examples = make_examples()
    examples.table.loc[[1, 3], "grade_group"] = [NAN, 4.0]
    task = make_task(examples, reward={"cspca_weight": 3.0})
    batch = task.make_batch(AttentionData(examples, None), torch.tensor([3, 0, 1, 5]).numpy())
    assert task.prompt_weights(task.replicate(batch, 4)).tolist() == [3.0, 1.0, 1.0, 3.0]  # grades 4, 0, unknown, 3


def test_by_default_nothing_is_weighed():
    assert section("reward")["cspca_weight"] == 1.0
    assert make_task().prompt_weights(graded(5, 0)) is None


def test_a_factor_on_the_rewards_cancels_and_the_weight_does_not():
    scaled = REWARDS * torch.tensor([[4.0], [1.0]])
    torch.testing.assert_close(advantages(1.0, scaled), advantages(1.0), atol=1e-3, rtol=0)  # eps / std is left: 1e-4 / 1.7
    weighed = advantages(4.0)
    torch.testing.assert_close(weighed[0], 4 * advantages(1.0)[0], atol=1e-12, rtol=0)
    assert torch.equal(weighed[1], advantages(1.0)[1])


def test_importance_and_priority_multiply():
    importance = torch.tensor([[1.0, 0.5, 2.0, 0.0], [1.0, 1.0, 0.25, 1.0]])
    expected = advantages(1.0) * torch.tensor([[3.0], [1.0]]) * importance
    torch.testing.assert_close(advantages(3.0, importance=importance), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "wrong", [{"cspca_weight": 0.0}, {"cspca_weight": float("inf")}, {"cspca_min_grade": 0}, {"cspca_min_grade": 6}]
)
def test_wrong_priorities_are_refused(wrong: dict[str, float]):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        RewardParams.model_validate(section("reward", **wrong))
