"""The samples and reward calls of a step are those that the task was asked for, counted one by one."""

import math
from typing import Any

import pandas as pd
import pytest
import torch
from tiny_attention import algorithm_params, make_batch, make_data, make_state, make_task, training_params

from grpo_pipeline.pipelines.evaluation.budget import Budget, budget_sentences, mean_budget, read_budget
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.statistics.bar import longer_than
from grpo_pipeline.tasks.attention.task import AttentionTask

CREDIT = {"advantage": {"method": "mean_only", "credit": "leave_one_out"}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("grpo", {}),
    "control": ("supervised", {}),
    "no samples": ("supervised", {"proposal": "none"}),
    "credit": ("grpo", CREDIT),
    "retries": ("grpo", {"dynamic_sampling": {"max_retries": 2}}),
    "several epochs": ("grpo", {"update_epochs": 3}),
}


@pytest.mark.parametrize("micro_batch_size", [None, 3], ids=["whole", "micro-batches"])
@pytest.mark.parametrize("case", CASES)
def test_the_cost_of_a_step_is_what_the_task_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, case: str, micro_batch_size: int | None
) -> None:
    counted = {"samples": 0, "reward_calls": 0}
    sample, reward = AttentionTask.sample, AttentionTask.reward

    def sampled(self: Any, *arguments: Any, **options: Any) -> Any:
        found = sample(self, *arguments, **options)
        if options["proposal"] != "none":
            counted["samples"] += found.actions.shape[0] * found.actions.shape[1]
        return found

    def rewarded(self: Any, batch: Any, rollouts: Any, outcomes: Any) -> Any:
        if case != "no samples":  # that nothing is worth something is no sample's reward
            counted["reward_calls"] += rollouts.actions.shape[0] * rollouts.actions.shape[1]
        parts, weights = reward(self, batch, rollouts, outcomes)
        if case == "retries":  # every group ties, and is drawn again as often as it may
            parts = {name: torch.zeros_like(part) for name, part in parts.items()}
        return parts, weights

    monkeypatch.setattr(AttentionTask, "sample", sampled)
    monkeypatch.setattr(AttentionTask, "reward", rewarded)
    arm, options = CASES[case]
    task, data = make_task(), make_data()
    training = training_params(micro_batch_size=micro_batch_size)
    _, metrics = StepRunner(task, algorithm_params(arm, **options), training)(make_state(task, data), make_batch(task))
    assert {name: metrics[name] for name in counted} == counted
    # 4 cores x 4 samples; each of 3 points left out; drawn 3 times, measured then and once more.
    known = {"plain": (16, 16), "no samples": (0, 0), "credit": (16, 64), "retries": (48, 64)}
    assert tuple(counted.values()) == known.get(case, (16, 16))


def test_a_budget_that_was_not_counted_is_not_compared() -> None:
    control, arm = Budget(30, None, 960, False), Budget(30, 960, 960, True)
    assert budget_sentences({"supervised": control, "grpo": arm}, control="supervised") == []
    assert budget_sentences({"grpo": arm}, control="supervised") == []
    fewer = Budget(20, 640, 2560, True)
    assert budget_sentences({"supervised": arm, "grpo": fewer}, control="supervised") == [
        "Unequal training: grpo had 20 steps against 30, 640 samples against 960, 2,560 reward calls against 960 of the control "
        "supervised."
    ]
    assert mean_budget([arm, fewer]) == Budget(25, 800, 1760, True)
    assert mean_budget([arm, control]) == Budget(30, None, 960, True)
    assert mean_budget([control, control]) == Budget(30, None, 960, False)


def test_a_budget_is_that_of_the_training_steps_where_each_was_counted() -> None:
    nan = math.nan
    rows = pd.DataFrame(
        {
            "split": ["train", "train", "val", "train"],
            "samples": [8.0, 8.0, 99.0, 4.0],
            "reward_calls": [8.0, nan, nan, 4.0],  # one step was not counted
            "policy/loss": [nan, nan, 7.0, nan],  # of a control, beside a validation that knows more
        }
    )
    assert read_budget(rows) == Budget(3, 20, None, False)
    assert read_budget(rows.assign(**{"policy/loss": [nan, nan, nan, 0.0]})) == Budget(3, 20, None, True)
    assert read_budget(rows.drop(columns=["samples", "policy/loss"])) == Budget(3, None, None, False)
    assert read_budget(rows.drop(columns="split")) == Budget(0, 0, 0, False)
    training = {"control": {"steps": 30}, "as long": {"steps": 30}, "longer": {"steps": 31}, "shorter": {"steps": 29}}
    assert longer_than(training, "control") == ["longer"]
    assert longer_than(training, "absent") == []
