"""Train trials one by one in this process, or several at once, each in a process of its own; the bits are the same.

A trial is a function of task, parameters, seed and data that touches nothing else. The processes are fresh interpreters and
no forks: a fork copies locks that other threads hold, and multiprocessing's spawn runs the parent's main module again.
"""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import torch

from grpo_pipeline.pipelines.experiments.trials.arms import ResolvedArm
from grpo_pipeline.pipelines.experiments.trials.records import Trial
from grpo_pipeline.pipelines.experiments.trials.setup import (
    TaskSetup,
    Trained,
    open_trial,
    train_trial,
)
from grpo_pipeline.runs.lookahead import usable_cores

WORKER = "grpo_pipeline.pipelines.experiments.trials.worker"
TRIES = 2  # of a trial whose process died
GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Job:
    """One trial to train: its number in the plan, what it is, and the parameters of its arm."""

    number: int
    trial: Trial
    arm: ResolvedArm


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: what it has trained, or None with the reason and the traceback."""

    seconds: float
    trained: Trained | None = None
    reason: str | None = None
    traceback: str | None = None


@dataclass(frozen=True)
class Place:
    """The task and the data that every trial is trained with, and what is kept of a training."""

    setup: TaskSetup
    examples: Any
    split: str
    keeps_weights: bool


def train(job: Job, place: Place, memory: Mapping[str, Any]) -> tuple[Outcome, Mapping[str, Any]]:
    """Train one trial; returns how it ended, and the memory for the next trial in this process."""
    start = time.perf_counter()
    try:
        opened = open_trial(place.setup, job.arm, job.trial, place.examples, memory)
        done = train_trial(place.setup, job.arm, opened, seed=job.trial.seed, split=place.split)
    except Exception as error:  # noqa: BLE001 - whatever one trial raises is written down, and the other trials go on
        return failure(error, seconds=time.perf_counter() - start), memory
    kept = done if place.keeps_weights else Trained(done.predictions, done.metric_rows, None)
    return Outcome(time.perf_counter() - start, kept), opened.memory


def failure(error: BaseException, *, seconds: float) -> Outcome:
    """Return an error as the outcome of a trial."""
    written = "".join(traceback.format_exception(error))
    return Outcome(seconds, reason=reason_of(error), traceback=written)


def reason_of(error: BaseException) -> str:
    """Return an error as one sentence."""
    text = " ".join(str(error).split())
    return (
        text
        if isinstance(error, ValueError) and text
        else f"{type(error).__name__}: {text}".removesuffix(": ")
    )


def one_by_one(
    jobs: Sequence[Job], place: Place, *, before: Callable[[Job], None]
) -> Iterator[tuple[Job, Outcome]]:
    """Train the trials in this process in their order; ``before`` is told of each when it begins."""
    memory: Mapping[str, Any] = {}
    for job in jobs:
        before(job)
        outcome, memory = train(job, place, memory)
        yield job, outcome


@dataclass
class Lane:
    """A process that trains one trial after the other; ``seeds`` are those whose start it may have in memory."""

    process: subprocess.Popen[bytes]
    connection: Connection
    job: Job | None = None
    begun: float = 0.0
    seeds: set[Any] = field(default_factory=set)

    @classmethod
    def open(cls, place: Place) -> "Lane":
        """Start a process and hand it task and data."""
        here, there = Pipe()
        with there:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER, str(there.fileno())],
                stdin=subprocess.PIPE,  # closed by this process's end, however it ends: the worker ends then, too
                stdout=sys.stderr.fileno() if _has_file(sys.stderr) else subprocess.DEVNULL,
                pass_fds=(there.fileno(),),
                env=os.environ
                | {"GRPO_PROGRESS": "off"}
                | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends the others
            )
        lane = cls(process, here)
        send(lane.connection, (place.setup.task, torch.get_num_threads()))
        send(lane.connection, (place.examples, place.split, place.keeps_weights))
        return lane

    def give(self, job: Job) -> None:
        """Send a trial to be trained."""
        self.job, self.begun = job, time.perf_counter()
        self.seeds.add(start_of(job))
        with suppress(BrokenPipeError):  # it has died: that is seen when its answer is read
            send(self.connection, job)

    def take(self) -> Outcome | None:
        """Return how the trial has ended; None if the process died over it."""
        try:
            outcome: Outcome = receive(self.connection)
        except (EOFError, ConnectionResetError):
            return None
        return outcome

    def close(self) -> None:
        """End the process and whatever it has started."""
        self.connection.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_SECONDS)
        if self.process.stdin is not None:
            self.process.stdin.close()


class Plain(ForkingPickler):
    """Writes values as they are: torch would hand tensors on as shared memory, which ends with the process that sent them."""

    _extra_reducers: ClassVar[dict[Any, Any]] = {}


def send(connection: Connection, value: Any) -> None:
    """Write a value into a pipe between a run and its own processes; nothing of it is ever stored."""
    connection.send_bytes(Plain.dumps(value))


def receive(connection: Connection) -> Any:
    """Read a value that ``send`` has written.

    Raises:
        EOFError: if the other end is closed.
    """
    return Plain.loads(connection.recv_bytes())


def _has_file(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except (AttributeError, OSError, ValueError):
        return False


def count_workers(wanted: int | None, arms: Iterable[ResolvedArm]) -> int:
    """Return how many trials are trained at once: what is wanted, else one a core, and one alone where an arm uses a GPU."""
    if os.name == "nt":  # an open file cannot be handed to a process there as it is here
        return 1
    if wanted is not None:
        return wanted
    devices = {arm.training.device for arm in arms}
    if any(
        name.startswith("cuda") or (name == "auto" and torch.cuda.is_available())
        for name in devices
    ):
        return 1
    return max(usable_cores() // torch.get_num_threads(), 1)


def start_of(job: Job) -> tuple[int, str | None]:
    """Return what trials share that may begin with the same weights: a warm start is trained once a seed and fold."""
    return job.trial.seed, job.trial.fold


def in_processes(jobs: Sequence[Job], place: Place, workers: int) -> Iterator[tuple[Job, Outcome]]:
    """Train several trials at once; yields each when it is done. A trial whose process dies is tried once more in a new one."""
    to_do, tries = [*jobs], dict.fromkeys((job.trial.key for job in jobs), 0)
    lanes: list[Lane] = []
    try:
        lanes += (Lane.open(place) for _ in range(workers))
        for lane in lanes:
            lane.give(choose(to_do, lane, lanes))
        while busy := {lane.connection: lane for lane in lanes if lane.job is not None}:
            for ready in wait([*busy]):
                lane = next(one for one in lanes if one.connection is ready)
                job, outcome = lane.job, lane.take()
                assert job is not None
                seconds, lane.job = time.perf_counter() - lane.begun, None
                if outcome is None:
                    tries[job.trial.key] += 1
                    lane.close()
                    reason = died(lane.process.returncode)
                    position = lanes.index(lane)
                    lanes[position] = lane = Lane.open(place)
                    if tries[job.trial.key] < TRIES:
                        to_do.insert(0, job)
                    else:
                        outcome = Outcome(seconds, reason=reason)
                if to_do:
                    lane.give(choose(to_do, lane, lanes))
                if outcome is not None:
                    yield job, outcome
    finally:
        for lane in lanes:
            lane.close()


def choose(to_do: list[Job], lane: Lane, lanes: Sequence[Lane]) -> Job:
    """Take the next trial for a process: of a seed that it knows, else of one that no other process has, else any."""
    elsewhere = {start for other in lanes if other is not lane for start in other.seeds}
    known = [job for job in to_do if start_of(job) in lane.seeds]
    new = [job for job in to_do if start_of(job) not in elsewhere]
    job = next(iter((*known, *new, *to_do)))
    to_do.remove(job)
    return job


def died(status: int | None) -> str:
    """Say how a process ended that should not have."""
    how = f"by signal {-status}" if status is not None and status < 0 else f"with status {status}"
    return f"its process ended {how}, twice; where memory is short, take fewer workers"
