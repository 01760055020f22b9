"""Where trainings run: how many at once, who gets which job, and what a process of its own hands back."""

import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from typing import ClassVar

import pytest
from processes import are_gone, end_soon, workers_of

from grpo_pipeline.runs import executor
from grpo_pipeline.runs.executor import ExecutorParams, Job, Pool
from grpo_pipeline.runs.worker import UnsendableError, Worker, WorkerDied

PARAMS = ExecutorParams(kind="processes", workers=None, address=None, cpus=1, gpus=0)


def changed(**changes):
    return PARAMS.model_copy(update=changes)


def count_up(to):
    """Yield numbers, and log the last one."""
    yield from range(to)
    logging.getLogger("grpo_pipeline.tests").warning("%d is the last one", to - 1)


def show_progress():
    """Count to two in a loop that shows its progress."""
    from grpo_pipeline.runs.progress import track

    yield list(track([1, 2], "count"))


class UnlikeItsMessageError(ValueError):
    """An error that cannot be built from its message."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def fail():
    yield 1
    raise UnlikeItsMessageError("one", "two")


def die():
    os._exit(7)
    yield


HERE = f"{__name__}:"


@pytest.fixture(scope="module")
def worker():
    """A process that imports this module by the name that it has here."""
    found = Worker(threads=1)
    yield found
    found.close()
    assert are_gone([found.process.pid])


def test_a_worker_yields_what_a_function_yields_and_logs_here_what_it_logs_there(worker, caplog):
    seen = []
    assert list(worker.results(HERE + "count_up", 3, watch=seen.append)) == [0, 1, 2]
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("grpo_pipeline.tests", "2 is the last one")]
    assert list(worker.results(HERE + "show_progress", watch=seen.append)) == [[1, 2]]
    assert [(one.description, one.done, one.total) for one in seen] == [("count", 0, 2), ("count", 2, 2)]


def test_an_error_that_cannot_cross_says_the_same_and_where_it_was_raised(worker):
    results = worker.results(HERE + "fail", watch=print)
    assert next(results) == 1
    with pytest.raises(RuntimeError, match="UnlikeItsMessageError: one and two") as raised:
        next(results)
    assert "in fail" in raised.value.__notes__[0]
    with pytest.raises(UnsendableError, match="cannot be copied into another one"):
        list(worker.results(HERE + "count_up", lambda: 1, watch=print))
    assert list(worker.results(HERE + "count_up", 1, watch=print)) == [0]  # and it goes on


def test_a_worker_that_ends_says_how():
    died = Worker(threads=1)
    with pytest.raises(WorkerDied, match="its process ended with status 7"):
        list(died.results(HERE + "die", watch=print))
    assert are_gone([died.process.pid])


class Scripted:
    """A worker in this process that notes what it is asked for."""

    opened: ClassVar[list] = []

    def __init__(self):
        self.asked = []
        Scripted.opened.append(self)

    def results(self, function, *arguments, watch):
        self.asked.append((function, *arguments))
        time.sleep(0.02)
        yield function

    def close(self):
        pass


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(Scripted, "opened", [])
    monkeypatch.setattr(ExecutorParams, "open", lambda self: Scripted())
    return Scripted.opened


def test_a_process_takes_starts_it_knows_then_new_ones_then_those_of_others(scripted):
    pool = Pool([], PARAMS, at_once=2)
    jobs = [Job(name, name, (), start=start) for name, start in (("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 2))]
    pool._to_do, pool._starts = [*jobs], {0: set(), 1: set()}
    assert [pool._next(number).name for number in (0, 1, 1, 0, 0)] == ["a", "c", "d", "b", "e"]
    pool._to_do = [Job("f", "f", (), start=2)]
    assert pool._next(1).name == "f"  # nobody waits where work is left
    assert pool._next(1) is None


def test_every_process_does_the_first_job_before_all_others_and_nobody_hears_of_it(scripted):
    jobs = [Job(name, name, (name,), start=name) for name in "abcd"]
    pool, seen = Pool(jobs, PARAMS, at_once=2, first=Job("settle", "settle", (9,))), []
    while len(seen) < 8:
        event = pool.events.get(timeout=20)
        seen.append((event.job.name, event.kind))
    assert sorted(seen) == sorted([(name, kind) for name in "abcd" for kind in ("item", "end")])
    assert [worker.asked[0] for worker in scripted] == [("settle", 9)] * 2
    assert sorted(asked for worker in scripted for asked in worker.asked[1:]) == [(name, name) for name in "abcd"]


def test_a_pool_that_is_closed_ends_its_processes_and_tells_nothing_more():
    pool = Pool([Job("long", HERE + "count_up", (10**9,))] * 2, PARAMS, at_once=2)
    assert {pool.events.get(timeout=60).kind for _ in range(20)} == {"item"}
    pids = [worker.process.pid for worker in pool._workers]
    assert len(pids) == 2
    assert {*pids} <= {*workers_of(os.getpid())}
    pool.close()
    assert are_gone(pids)
    while not pool.events.empty():
        pool.events.get()
    time.sleep(0.2)
    assert pool.events.empty()


@pytest.mark.parametrize(
    ("changes", "devices", "threads", "has_cuda", "wanted"),
    [
        ({}, ("cpu", "auto"), 2, False, 3),
        ({"workers": 5}, ("cuda",), 2, True, 5),
        ({"kind": "serial", "workers": 5}, ("cpu",), 1, False, 1),
        ({}, ("cpu", "cuda:1"), 2, False, 1),
        ({}, ("cpu",), 8, False, 1),
        ({}, ("auto",), 1, True, 1),
        ({}, ("cpu",), 1, True, 6),
    ],
)
def test_as_many_at_once_as_cores_but_one_alone_on_a_gpu(monkeypatch, changes, devices, threads, has_cuda, wanted):
    monkeypatch.setattr(executor, "usable_cores", lambda: 6)
    monkeypatch.setattr(executor.torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(executor.torch.cuda, "is_available", lambda: has_cuda)
    assert changed(**changes).count(devices) == wanted


def test_a_job_whose_process_dies_twice_fails_with_the_remedy_and_the_others_go_on(monkeypatch):
    """Its first process has yielded something: the second one yields it once more, and nobody hears of that."""
    jobs = [Job("unlucky", HERE + "count_up", (2,)), Job("good", HERE + "count_up", (3,)), Job("dies", HERE + "die", ())]
    take, killed = Worker.take, []

    def take_and_kill(worker):
        message = take(worker)
        if message == ("item", 0) and not killed:
            killed.append(worker.process.pid)
            os.kill(worker.process.pid, signal.SIGKILL)
        return message

    monkeypatch.setattr(Worker, "take", take_and_kill)
    with closing(Pool(jobs, PARAMS, at_once=1)) as pool:
        seen = {job.name: [] for job in jobs}
        while sum(kinds[-1:] in (["end"], ["error"]) for kinds in seen.values()) < 3:
            job, kind, value = pool.events.get(timeout=60)
            seen[job.name] += [kind] if kind == "end" else [value] if kind == "item" else [str(value), kind]
    assert len(killed) == 1
    assert seen["unlucky"] == [0, 1, "end"]
    assert seen["good"] == [0, 1, 2, "end"]
    assert seen["dies"] == ["its process ended with status 7, twice; where memory is short, take fewer executor.workers", "error"]


PARENT = """
from grpo_pipeline.runs.worker import Worker
worker = Worker(threads=1)
assert list(worker.results("builtins:range", 2, watch=print)) == [0, 1]
print(worker.process.pid, flush=True)
input()
"""


def test_a_process_ends_with_a_parent_that_is_killed(tmp_path):
    """No guard around the script's body: the process does not run it again."""
    script = tmp_path / "script.py"
    script.write_text(PARENT, encoding="utf-8")
    parent = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert workers_of(parent.pid) == [pid]
    parent.kill()
    parent.wait()
    assert end_soon(pid, seconds=20)
