import logging

import numpy as np
import pytest
import torch
from tiny_attention import algorithm_params, make_batch, make_data, make_state, make_task, training_params

from grpo_pipeline.pipelines.training.loop import StepRunner, merge_metrics, quiet_nodes, rows_of_step, steps_per_epoch

ROWS = np.array([3, 5, 8, 13, 21, 34, 55])


def epoch_of(epoch: int, *, batch_size: int = 3, seed: int = 0) -> list[int]:
    per_epoch = steps_per_epoch(len(ROWS), batch_size)
    steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
    return np.concatenate([rows_of_step(ROWS, step, batch_size=batch_size, seed=seed) for step in steps]).tolist()


@pytest.mark.parametrize(("batch_size", "seen"), [(1, 7), (3, 6), (7, 7), (50, 7)])
def test_an_epoch_sees_no_row_twice_in_an_order_of_seed_and_step(batch_size: int, seen: int):
    drawn = epoch_of(2, batch_size=batch_size)
    assert len(drawn) == len(set(drawn)) == seen
    assert set(drawn) <= set(ROWS.tolist())
    assert drawn == epoch_of(2, batch_size=batch_size)
    assert drawn not in (epoch_of(1, batch_size=batch_size), epoch_of(2, batch_size=batch_size, seed=1))
    if batch_size == 3:
        assert {(set(ROWS.tolist()) - set(epoch_of(epoch))).pop() for epoch in range(40)} == set(ROWS.tolist())


def test_merge_metrics_golden():
    first = {"policy/ratio_mean": 1.0, "policy/ratio_max": 1.0, "supervised/loss": torch.tensor(0.5), "policy/loss": 2.0}
    second = {"policy/ratio_mean": 1.5, "policy/ratio_max": 4.0, "policy/loss": torch.tensor(1.0)}
    assert merge_metrics([first, second]) == {
        "policy/ratio_mean": 1.25,
        "policy/ratio_max": 4.0,  # the worst, not the mean
        "supervised/loss": 0.5,  # measured once
        "policy/loss": 1.5,
        "policy/ratio_first": 1.0,
    }


@pytest.mark.parametrize(("arm", "proposal", "samples"), [("grpo", "policy", 16), ("supervised", "none", 4)])
def test_costs_of_a_step_and_its_nodes_are_muted(caplog: pytest.LogCaptureFixture, arm: str, proposal: str, samples: int):
    """4 cores, 4 samples of each where there are samples."""
    logger = logging.getLogger("kedro")
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        with caplog.at_level(logging.INFO), quiet_nodes():
            step = StepRunner(make_task(), algorithm_params(arm, proposal=proposal), training_params())
            _, metrics = step(make_state(make_task(), make_data()), make_batch(make_task()))
        assert [record for record in caplog.records if record.name.startswith("kedro")] == []
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)
    assert metrics["samples_per_second"] * metrics["step_seconds"] == pytest.approx(samples)
    assert 50 < metrics["peak_memory_mb"] < 100_000
