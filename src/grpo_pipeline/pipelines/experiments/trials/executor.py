"""Train trials one by one in this process, or several at once in others, with bit-identical results.

A trial is a function of task, parameters, seed and data, without side effects.
"""

import time
import traceback
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from grpo_pipeline.pipelines.experiments.trials.arms import ResolvedArm
from grpo_pipeline.pipelines.experiments.trials.preparation import TaskPreparation, open_trial
from grpo_pipeline.pipelines.experiments.trials.records import Trial
from grpo_pipeline.pipelines.experiments.trials.task_lookup import find_preparation
from grpo_pipeline.pipelines.experiments.trials.trial_training import Trained, train_trial
from grpo_pipeline.runs.executor import ExecutorParams, Job, Pool
from grpo_pipeline.runs.progress_listeners import reported_to
from grpo_pipeline.runs.shared_display import SharedDisplay


@dataclass(frozen=True)
class Assignment:
    """A trial to train, with its number in the plan and the parameters of its arm."""

    number: int
    trial: Trial
    arm: ResolvedArm


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial: the trained model, or None with the reason and the traceback."""

    seconds: float
    trained: Trained | None = None
    reason: str | None = None
    traceback: str | None = None


@dataclass(frozen=True)
class TrialContext:
    """The task and the data of all trials, and whether their weights are kept."""

    preparation: TaskPreparation
    examples: Any
    split: str
    keeps_weights: bool


def train(
    given: Assignment, place: TrialContext, memory: Mapping[str, Any]
) -> tuple[Outcome, Mapping[str, Any]]:
    """Train a trial; returns its outcome, and the memory for the next trial in this process."""
    start = time.perf_counter()
    try:
        opened = open_trial(place.preparation, given.arm, given.trial, place.examples, memory)
        done = train_trial(
            place.preparation, given.arm, opened, seed=given.trial.seed, split=place.split
        )
    except Exception as error:  # noqa: BLE001 - whatever one trial raises is written down, and the other trials go on
        return failure(error, seconds=time.perf_counter() - start), memory
    kept = done if place.keeps_weights else Trained(done.predictions, done.metric_rows, None)
    return Outcome(time.perf_counter() - start, kept), opened.memory


def failure(error: BaseException, *, seconds: float) -> Outcome:
    """Return an error as the outcome of a trial."""
    written = "".join(traceback.format_exception(error))
    return Outcome(seconds, reason=reason_of(error), traceback=written)


def reason_of(error: BaseException) -> str:
    """Write an error as a single sentence."""
    text = " ".join(str(error).split())
    return (
        text
        if isinstance(error, ValueError) and text
        else f"{type(error).__name__}: {text}".removesuffix(": ")
    )


def one_by_one(
    given: Sequence[Assignment], place: TrialContext, shown: SharedDisplay
) -> Generator[tuple[Assignment, Outcome]]:
    """Train the trials in this process in their order."""
    memory: Mapping[str, Any] = {}
    for one in given:
        with reported_to(partial(shown.report, one.trial.key)):
            outcome, memory = train(one, place, memory)
        shown.end(one.trial.key)
        yield one, outcome


class WorkerMemory:
    """The memory of a process that trains trials: the place, and values that trials of a seed share."""

    def __init__(self, place: TrialContext) -> None:
        self.place = place
        self.memory: Mapping[str, Any] = {}


_memory: list[WorkerMemory] = []


def open_worker(task: str, examples: Any, split: str, keeps_weights: bool) -> Iterator[None]:
    """Store the shared task and data in this process; yields nothing."""
    _memory[:] = [
        WorkerMemory(TrialContext(find_preparation(task), examples, split, keeps_weights))
    ]
    yield from ()


def train_in_worker(given: Assignment) -> Iterator[Outcome]:
    """Train a trial with the task and data stored in this process; yields its outcome."""
    here = _memory[0]
    outcome, here.memory = train(given, here.place, here.memory)
    yield outcome


def at_once(
    given: Sequence[Assignment],
    place: TrialContext,
    shown: SharedDisplay,
    *,
    params: ExecutorParams,
    workers: int,
) -> Generator[tuple[Assignment, Outcome]]:
    """Train several trials at once, each in another process; yields each when it is done."""
    jobs = {
        Job(
            one.trial.key,
            f"{__name__}:train_in_worker",
            (one,),
            start=(one.trial.seed, one.trial.fold),
        ): one
        for one in given
    }
    opening = (place.preparation.task, place.examples, place.split, place.keeps_weights)
    first = Job("open_worker", f"{__name__}:open_worker", opening)
    waiting = {*jobs}
    with closing(Pool([*jobs], params, at_once=workers, first=first)) as pool:
        while waiting:
            job, kind, value = pool.events.get()
            if kind == "moment":
                shown.report(job.name, value)
            elif kind != "end":  # a trial yields once
                waiting.remove(job)
                shown.end(job.name)
                lost = kind == "error"  # with its process: what a trial raises is an outcome of it
                seconds = shown.seconds(job.name)
                yield jobs[job], failure(value, seconds=seconds) if lost else value
