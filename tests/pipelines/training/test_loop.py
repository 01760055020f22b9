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
def test_an_epoch_sees_no_row_twice(batch_size: int, seen: int):
    drawn = epoch_of(2, batch_size=batch_size)
    assert len(drawn) == len(set(drawn)) == seen
    assert set(drawn) <= set(ROWS.tolist())


def test_the_row_left_out_changes_with_the_epoch():
    left_out = {(set(ROWS.tolist()) - set(epoch_of(epoch))).pop() for epoch in range(40)}
    assert left_out == set(ROWS.tolist())


def test_order_is_a_function_of_seed_and_step():
    again = rows_of_step(ROWS, 5, batch_size=3, seed=1)
    np.testing.assert_array_equal(rows_of_step(ROWS, 5, batch_size=3, seed=1), again)
    assert epoch_of(0) != epoch_of(1)
    assert epoch_of(0) != epoch_of(0, seed=1)


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
def test_costs_of_a_step(arm: str, proposal: str, samples: int):
    """4 cores, 4 samples of each where there are samples."""
    _, metrics = StepRunner(make_task(), algorithm_params(arm, proposal=proposal), training_params())(
        make_state(make_task(), make_data()), make_batch(make_task())
    )
    assert metrics["samples_per_second"] * metrics["step_seconds"] == pytest.approx(samples)
    assert 50 < metrics["peak_memory_mb"] < 100_000


def test_nodes_are_muted_and_the_level_comes_back(caplog: pytest.LogCaptureFixture):
    logger = logging.getLogger("kedro")
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        with caplog.at_level(logging.INFO), quiet_nodes():
            StepRunner(make_task(), algorithm_params(), training_params())(
                make_state(make_task(), make_data()), make_batch(make_task())
            )
        assert [record for record in caplog.records if record.name.startswith("kedro")] == []
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)
