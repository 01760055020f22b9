"""A coefficient that does nothing is named once, and only when it stays silent."""

import logging

import pytest

from grpo_pipeline.hooks.watch import WatchHooks
from grpo_pipeline.runs.dead_coefficients import DeadCoefficients


def rows(*values: float | None, name: str = "dead/kl") -> list[dict[str, float]]:
    return [{"step": step} | ({} if value is None else {name: value}) for step, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "warnings"),
    [
        ((1.0,), 0),
        ((1.0, 1.0), 1),
        ((1.0, 1.0, 1.0, 1.0), 1),  # once
        ((1.0, None, None, 1.0), 1),  # rows without a measurement say nothing
        ((1.0, 0.0, 1.0, 0.0), 0),
        ((1.0, 1.0, 0.0, 1.0, 1.0), 2),  # alive in between, and dead again
        ((0.0, 0.0), 0),
    ],
)
def test_warns_when_silent_twice_in_a_row(values, warnings):
    assert len(DeadCoefficients().read("attention.grpo", rows(*values))) == warnings


def test_counts_across_chunks_and_apart_for_each_arm_and_names_what_is_dead():
    watch = DeadCoefficients()
    assert watch.read("attention.grpo", rows(1.0)) == []
    assert watch.read("attention.ppo", rows(1.0)) == []
    assert watch.read("attention.grpo", rows(1.0)) == [
        "attention.grpo: the coefficient of 'kl' is not 0, but its gradient is exactly 0 at step 0; find the detach, or set it "
        "to 0"
    ]
    (sentence,) = DeadCoefficients().read("attention.grpo", rows(1.0, 1.0, name="dead/reward_bonus"))
    said = "attention.grpo: the reward component 'bonus' is the same for all samples of every group at step 1"
    assert sentence.startswith(said)


def test_the_hook_reads_metric_rows_only(monkeypatch):
    said = []
    monkeypatch.setattr(logging.getLogger("grpo_pipeline.hooks.watch"), "warning", said.append)
    hooks = WatchHooks()
    hooks.after_dataset_saved("attention.grpo.checkpoint", rows(1.0, 1.0))
    assert said == []
    hooks.after_dataset_saved("attention.grpo.metric_rows", rows(1.0, 1.0))
    assert len(said) == 1
    hooks.before_pipeline_run()
    hooks.after_dataset_saved("attention.grpo.metric_rows", rows(1.0))
    assert len(said) == 1
