"""Arms that are trained at once, each in a process of its own: the pieces are those of one after the other."""

import os
import signal

import pytest
import torch
from processes import are_gone, workers_of
from tiny import AT_ONCE, SERIAL, tiny
from tiny_trainings import ARMS, ready, trained

from grpo_pipeline.pipelines.training import at_once
from grpo_pipeline.pipelines.training.at_once import OF_RUN
from grpo_pipeline.runs import executor
from grpo_pipeline.tasks import BUILT_IN


@pytest.fixture(autouse=True)
def nothing_is_left(forked_workers):
    yield
    OF_RUN.close()
    assert workers_of(os.getpid()) == []


@pytest.mark.slow
@pytest.mark.parametrize("task", BUILT_IN)
def test_arms_that_are_trained_at_once_have_the_bits_of_one_after_the_other(task):
    one_by_one = trained([ready(task, arm, SERIAL) for arm in ARMS])
    together = trained([ready(task, arm, AT_ONCE) for arm in ARMS])
    assert list(together) == list(ARMS)
    for arm, (rows, last) in one_by_one.items():
        others, other = together[arm]
        assert len(rows) > 2
        assert repr(rows) == repr(others)  # NaN is equal to NaN here
        assert last.policy.keys() == other.policy.keys()
        assert all(torch.equal(tensor, other.policy[name]) for name, tensor in last.policy.items())
        assert last.progress == other.progress


def test_an_arm_whose_process_dies_again_fails_with_the_remedy_and_ends_the_others(monkeypatch):
    monkeypatch.setattr(executor.Worker, "ask", lambda worker, *given: os.kill(worker.process.pid, signal.SIGKILL))
    trainings = [ready("attention", arm, AT_ONCE) for arm in ARMS]
    with pytest.raises(RuntimeError, match="ended by signal 9, twice; where memory is short, take fewer executor.workers"):
        list(at_once.train(trainings[0]))
    assert workers_of(os.getpid()) == []


def test_the_error_of_an_arm_is_raised_where_its_pieces_are_taken(monkeypatch):
    """Its class, its sentence, and where it was raised."""
    good, bad = ready("attention", "supervised", AT_ONCE), ready("attention", "grpo", AT_ONCE)
    given = list(bad.job.arguments)
    given[2] = "sometimes"  # resume
    bad.job = executor.Job(bad.job.name, bad.job.function, tuple(given))
    assert len(list(at_once.train(good))) > 1
    with pytest.raises(ValueError, match="resume must be never or auto, got 'sometimes'") as raised:
        list(at_once.train(bad))
    assert "resuming.py" in raised.value.__notes__[0]


def test_a_task_that_cannot_be_copied_is_trained_in_this_process(monkeypatch, capsys):
    monkeypatch.setenv("GRPO_PROGRESS", "lines")
    task = tiny("attention").make_task()
    with open(os.devnull) as handle:  # what no process can be given
        object.__setattr__(task, "handle", handle)
        found = trained([ready("attention", arm, AT_ONCE, task) for arm in ARMS])
    assert [len(rows) for rows, _ in found.values()] == [len(found["grpo"][0])] * 2
    said = capsys.readouterr().err
    assert "attention.grpo is trained in this process: it cannot be copied into another one (cannot pickle" in said


def test_whoever_stops_taking_the_pieces_of_an_arm_ends_all_of_them():
    trainings = [ready("attention", arm, AT_ONCE, epochs=500) for arm in ARMS]
    pieces = at_once.train(trainings[0])
    next(pieces)
    pids = workers_of(os.getpid())
    assert len(pids) == 2
    pieces.close()
    assert are_gone(pids)


def test_of_checkpoints_that_nobody_has_taken_the_last_one_is_kept_and_every_row():
    training = ready("attention", "grpo", SERIAL)
    for piece in (([1], "a"), ([2], False), ([3], "b"), ([4], False)):
        training.put(piece)
    assert list(training.pieces) == [([1], False), ([2], False), ([3], "b"), ([4], False)]


def test_what_is_trained_by_itself_and_what_was_not_ready_is_trained_here():
    alone = ready("attention", "supervised", AT_ONCE)
    pieces = at_once.train(alone)
    next(pieces)
    assert workers_of(os.getpid()) == []  # one arm alone needs no process
    late = ready("attention", "grpo", AT_ONCE)
    assert len(list(at_once.train(late))) > 1
    assert len(list(pieces)) > 0
