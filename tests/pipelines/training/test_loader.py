import logging
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_attention import algorithm_params, differing, make_batch, make_data, make_state, make_task, training_params

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.pipelines.training import loader, nodes, replayed_batches
from grpo_pipeline.pipelines.training.loader import BatchLoader, make_training_batch
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.order import rows_of_step, steps_per_epoch
from grpo_pipeline.pipelines.training.step_metrics import merge_metrics
from grpo_pipeline.runs.lookahead import THREAD_NAME
from grpo_pipeline.tasks.attention.task import AttentionTask

TASK, DATA, NOTHING = make_task(), make_data(), NoCheckpoint("nowhere")
TIMES = {"step_seconds", "samples_per_second", "peak_memory_mb"}
REPLAY = {"capacity": 8, "max_age_steps": 4, "share": 0.5, "importance_cap": 2.0}


def settings() -> Any:
    return training_params(epochs=3, batch_size=4)


def run(training: Any, *, resume: str = "never", start: Any = NOTHING, **algorithm: Any) -> Any:
    params = algorithm_params(**algorithm)
    return nodes.train(params, training, resume, TASK, DATA, make_state(TASK, DATA, params, training), start, {})


def results(yielded: list[Any]) -> tuple[list[Any], Checkpoint]:
    rows = [{name: value for name, value in row.items() if name not in TIMES} for rows, _ in yielded for row in rows]
    return [repr(row) for row in rows], [checkpoint for _, checkpoint in yielded if checkpoint][-1]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]


def test_a_run_is_bit_identical_to_one_without_a_thread(monkeypatch: pytest.MonkeyPatch):
    rows, checkpoint = results(list(run(settings())))
    monkeypatch.setattr(loader, "AHEAD", 0)
    plain = results(list(run(settings())))
    assert rows == plain[0]
    assert differing(dict(checkpoint.policy), dict(plain[1].policy)) == []
    assert threads() == []


@pytest.mark.parametrize("ahead", [0, 3])
def test_batches_are_those_of_their_steps_with_the_generator_of_the_step(monkeypatch: pytest.MonkeyPatch, ahead: int):
    seeds: list[int] = []
    make = AttentionTask.make_batch

    def record(self: AttentionTask, data: Any, rows: Any, *, generator: Any) -> Any:
        seeds.append(generator.initial_seed())
        return make(self, data, rows, generator=generator)

    training = settings()
    monkeypatch.setattr(loader, "AHEAD", ahead)
    state = replace(make_state(TASK, DATA, algorithm_params(), training, seed=7), step=2)
    monkeypatch.setattr(AttentionTask, "make_batch", record)
    with BatchLoader(TASK, DATA, algorithm_params(), training, state) as batches:
        taken = [batches.take(replace(state, step=step)) for step in range(2, 6)]
    assert set(seeds) == {step_generator(7, step, stream=Stream.BATCH).initial_seed() for step in range(2, 6)}
    assert len(seeds) == len(set(seeds)) == 4
    assert threads() == []
    for step, loaded in enumerate(taken, start=2):
        expected = rows_of_step(TASK.rows(DATA, "train"), step, batch_size=4, seed=7)
        np.testing.assert_array_equal(loaded.rows, expected)
        assert loaded.replayed.positions == ()
        torch.testing.assert_close(loaded.batch.images, make_training_batch(TASK, DATA, expected, seed=7, step=step).images)


def test_with_replay_a_batch_is_made_after_the_step_before_it_on_one_core(monkeypatch: pytest.MonkeyPatch):
    """That other batches are made ahead of their step is the subject of test_lookahead."""
    made: list[tuple[str, int]] = []
    make, before = AttentionTask.make_batch, torch.get_num_threads()

    def counted(self: AttentionTask, data: Any, rows: Any, *, generator: Any = None) -> Any:
        if generator is not None:
            made.append((threading.current_thread().name, torch.get_num_threads()))
        return make(self, data, rows, generator=generator)

    monkeypatch.setattr(AttentionTask, "make_batch", counted)
    torch.set_num_threads(3)
    try:
        steps = run(settings(), replay=REPLAY)
        next(steps)
        for number in (1, 2, 3):
            next(steps)
            assert made == [(threading.current_thread().name, 1)] * number
        assert torch.get_num_threads() == 3
        steps.close()
    finally:
        torch.set_num_threads(before)


def test_each_step_replays_groups_of_its_own_draw():
    params, training, rows = algorithm_params(replay=REPLAY | {"max_age_steps": 50}), settings(), np.arange(8)
    state = make_state(TASK, DATA, params, training)
    plan, replayed = replayed_batches.plan_batch(params, state, rows)
    done = StepRunner(TASK, params, training).run(state, TASK.make_batch(DATA, plan), replayed)
    replayed_batches.remember(state, done.experience, plan, replayed)
    plans = [replayed_batches.plan_batch(params, replace(state, step=step), rows[:4])[0].tolist() for step in (1, 1, 2, 3, 4)]
    assert plans[0] == plans[1]
    assert len(set(map(tuple, plans))) > 2


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
            step = StepRunner(TASK, algorithm_params(arm, proposal=proposal), training_params())
            _, metrics = step(make_state(TASK, DATA), make_batch(TASK))
        assert [record for record in caplog.records if record.name.startswith("kedro")] == []
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)
    assert metrics["samples_per_second"] * metrics["step_seconds"] == pytest.approx(samples)
    assert 50 < metrics["peak_memory_mb"] < 100_000
