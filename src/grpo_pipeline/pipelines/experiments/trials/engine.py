"""Train the trials of a plan; each is handed over when it is finished, and a failed one stops no other."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

import grpo_pipeline
from grpo_pipeline.pipelines.experiments.trials.arms import ResolvedArm
from grpo_pipeline.pipelines.experiments.trials.executor import (
    Job,
    Outcome,
    Place,
    failure,
    in_processes,
    one_by_one,
)
from grpo_pipeline.pipelines.experiments.trials.records import (
    CompareError,
    Plan,
    StoredTrials,
    Trial,
    TrialHeader,
    TrialRecord,
)
from grpo_pipeline.pipelines.experiments.trials.setup import (
    TaskSetup,
    data_of,
    examples_of,
    open_task,
)
from grpo_pipeline.pipelines.training.resuming import run_digest
from grpo_pipeline.runs.process import digest_of_sources
from grpo_pipeline.runs.progress import say
from grpo_pipeline.tasks import TASKS, find_task

# Digest what decides a trial's result (parameters, data, seed, code): a finished trial is kept as long as it is the same.

# Code that only reads finished trials (evaluation, reporting, tracking) does not count: a new figure trains nothing anew.
DECIDING = (
    *("core", "rewards", "statistics", "pipelines/step", "pipelines/training"),
    *("pipelines/experiments/trials/setup.py", "pipelines/experiments/trials/setups.py"),
)


def trial_digest(
    setup: TaskSetup, arm: ResolvedArm, trial: Trial, examples: Any, *, split: str
) -> str:
    """Return the digest of one trial; two trials with the same one have the same result (on one machine)."""
    there = examples_of(setup, trial, examples)
    task = open_task(setup, arm, there)
    run = run_digest(arm.algorithm, arm.training, task, data_of(setup, arm, there), seed=trial.seed)
    parameters = json.dumps({"scored": split, **arm.parameters}, sort_keys=True)
    return hashlib.sha256(
        "\n".join([run, parameters, arm.description.rule, source_digest(setup.task)]).encode()
    ).hexdigest()


@cache
def source_digest(task: str) -> str:
    """Return the digest of the source files that decide a trial of a task, and the versions of this package and torch.

    These are the code that all tasks share, and the task's own: another task's may change.
    """
    package, wiring = Path(grpo_pipeline.__file__).parent, find_task(task).wiring()
    shared = sorted(f"tasks/{path.name}" for path in (package / "tasks").glob("*.py"))
    own = sorted(
        {Path(str(module.__file__)).parent for module in (import_module(TASKS[task]), wiring)}
    )
    versions = f"{grpo_pipeline.__version__} {torch.__version__}"
    parts = [digest_of_sources(package, (*DECIDING, *shared), salt=versions)]
    return "\n".join([*parts, *(digest_of_sources(path.parent, [path.name]) for path in own)])


# (prediction rows, rule) -> metric -> value on the whole split, without those that are undefined
Score = Callable[[pd.DataFrame, str], Mapping[str, float]]


@dataclass(frozen=True)
class Bench:
    """Everything that a trial is trained with.

    Attributes:
        setup: the task.
        examples: its data, with the split that is used where a trial has none of its own.
        score: the metrics that are written beside a trial's rows.
        split: the split whose rows are scored.
        keeps_weights: whether the final weights are stored.
        workers: how many trials are trained at once, each in a process of its own; 1 trains them in this process.
    """

    setup: TaskSetup
    examples: Any
    score: Score
    split: str = "test"
    keeps_weights: bool = False
    workers: int = 1


def run_trials(
    plan: Plan, bench: Bench, before: StoredTrials
) -> Iterator[TrialRecord | Literal[False]]:
    """Train what is not finished yet; yields a record for each trial that was run, finished or failed, when it is done.

    Args:
        plan: arms and trials.
        bench: task and data.
        before: the trials of earlier runs. One that is finished and has the same digest is kept, every other is run.

    Yields:
        First False (a generator node must yield, also when nothing is left to do), then the records.

    Raises:
        CompareError: after the last trial, if no trial of the plan is finished.
    """
    digests = {
        trial.key: trial_digest(
            bench.setup, plan.arms[trial.arm], trial, bench.examples, split=bench.split
        )
        for trial in plan.trials
    }
    finished = {
        key: header.digest for key, header in before.headers.items() if header.status == "finished"
    }
    kept = [key for key, digest in digests.items() if finished.get(key) == digest]
    if kept:
        say(f"{len(kept)} of {len(plan.trials)} trials are finished and kept: {shortened(kept)}")
    yield False
    jobs = [
        Job(number, trial, plan.arms[trial.arm])
        for number, trial in enumerate(plan.trials, start=1)
        if trial.key not in kept
    ]
    workers = min(bench.workers, len(jobs))
    earlier = [before.headers[key].seconds for key in kept]
    pace = Pace(len(jobs), earlier, workers=max(workers, 1))
    place = Place(bench.setup, bench.examples, bench.split, bench.keeps_weights)
    if workers > 1:
        say(f"{len(jobs)} trials, {workers} at a time, each in a process of its own{pace.left()}")
        outcomes = in_processes(jobs, place, workers)
    else:
        outcomes = one_by_one(jobs, place, before=lambda job: say(told(job, plan, pace)))
    failed: list[TrialHeader] = []
    for job, outcome in outcomes:
        record = record_of(job, outcome, bench, digest=digests[job.trial.key])
        pace.count(record.header.seconds)
        if record.header.status == "failed":
            failed.append(record.header)
            say(f"trial {job.trial.key} failed, the others go on: {record.header.reason}")
        elif workers > 1:
            say(told(job, plan, pace, " is done: "))
        yield record
    report(failed, total=len(plan.trials))


def told(job: Job, plan: Plan, pace: "Pace", how: str = ": ") -> str:
    """Say which trial it is, whether it begins or is done, and how long the rest will take."""
    return f"trial {job.number} of {len(plan.trials)}{how}{job.trial.key}{pace.left()}"


def record_of(job: Job, outcome: Outcome, bench: Bench, *, digest: str) -> TrialRecord:
    """Return the record of a trial, of a failure too, with its metrics."""
    header = TrialHeader(
        key=job.trial.key,
        task=bench.setup.task,
        arm=job.trial.arm,
        seed=job.trial.seed,
        fold=job.trial.fold,
        status="failed",
        seconds=outcome.seconds,
        digest=digest,
        parameters=job.arm.parameters,
        reason=outcome.reason,
    )
    done = outcome.trained
    if done is None:
        return TrialRecord(header, traceback=outcome.traceback)
    try:
        metrics = bench.score(done.predictions, job.arm.description.rule)
    except Exception as error:  # noqa: BLE001 - rows that cannot be scored fail their trial alone
        lost = failure(error, seconds=outcome.seconds)
        return TrialRecord(replace(header, reason=lost.reason), traceback=lost.traceback)
    finished = replace(header, status="finished", metrics=dict(metrics))
    return TrialRecord(finished, done.predictions, done.metric_rows, done.weights)


def report(failed: list[TrialHeader], *, total: int) -> None:
    """Say at the end which trials failed; raise if all of them did."""
    if not failed:
        return
    if len(failed) == total:
        raise CompareError(
            f"at least one trial must finish, got {total} failures; the first is {failed[0].key}: {failed[0].reason}"
        )
    say(
        f"{len(failed)} of {total} trials failed and are tried again by the next run: {shortened([h.key for h in failed])}"
    )


def shortened(keys: list[str], *, limit: int = 6) -> str:
    """Return the first few keys and how many more there are."""
    more = f" and {len(keys) - limit} more" if len(keys) > limit else ""
    return ", ".join(keys[:limit]) + more


class Pace:
    """How long the rest will take: the mean of the trials so far, those of earlier runs until there is one of this."""

    def __init__(self, to_do: int, earlier: list[float], *, workers: int = 1) -> None:
        self._to_do, self._earlier, self._seconds = to_do, earlier, list[float]()
        self._workers = workers

    def count(self, seconds: float) -> None:
        """Note that a trial is done."""
        self._to_do -= 1
        self._seconds.append(seconds)

    def left(self) -> str:
        """Return ``, about 12 min left``; nothing as long as there is no trial to judge by."""
        known = self._seconds or self._earlier
        if not known:
            return ""
        seconds = sum(known) / len(known) * self._to_do / self._workers
        return (
            f", about {seconds / 60:.0f} min left"
            if seconds >= 90
            else f", about {seconds:.0f} s left"
        )
