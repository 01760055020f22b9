"""Trainings on a Ray cluster of this machine: the bits of one after the other, and the ways in which a process may end."""

import os

import pytest
import torch
from tiny import SERIAL
from tiny_trainings import ARMS, ready, trained

from grpo_pipeline.runs.executor import Job, Pool

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
PARAMS = SERIAL.model_copy(update={"kind": "ray"})
HERE = f"{__name__}:"


def count_up(to):
    yield from range(to)


def fail():
    yield 1
    raise ValueError("one and two")


def die():
    os._exit(7)
    yield


@pytest.fixture(scope="module", autouse=True)
def cluster():
    assert PARAMS.count([]) == (len(os.sched_getaffinity(0)))
    yield
    ray.shutdown()


@pytest.mark.slow
def test_jobs_yield_fail_and_die_there_as_in_processes():
    jobs = [Job("counts", HERE + "count_up", (3,)), Job("fails", HERE + "fail", ()), Job("dies", HERE + "die", ())]
    pool, seen = Pool(jobs, PARAMS, at_once=2), {job.name: [] for job in jobs}
    while sum(kinds[-1:] in (["end"], ["error"]) for kinds in seen.values()) < 3:
        job, kind, value = pool.events.get(timeout=120)
        seen[job.name] += [value, kind] if kind == "item" else [kind] if kind == "end" else [str(value), kind]
    pool.close()
    assert seen["counts"] == [0, "item", 1, "item", 2, "item", "end"]
    assert seen["fails"] == [1, "item", "one and two", "error"]
    assert seen["dies"][0].endswith("twice; where memory is short, take fewer executor.workers")


@pytest.mark.slow
def test_arms_that_are_trained_there_have_the_bits_of_one_after_the_other():
    here, there = (trained([ready("attention", arm, params) for arm in ARMS]) for params in (SERIAL, PARAMS))
    for arm, (rows, last) in here.items():
        assert repr(rows) == repr(there[arm][0])
        assert all(torch.equal(tensor, there[arm][1].policy[name]) for name, tensor in last.policy.items())
