"""Train the trials of a plan; each is handed over when it is finished, and a failure stops no other trial."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from grpo_pipeline.pipelines.experiments.trials.digest import trial_digest
from grpo_pipeline.pipelines.experiments.trials.executor import (
    Assignment,
    Outcome,
    TrialContext,
    at_once,
    failure,
    one_by_one,
)
from grpo_pipeline.pipelines.experiments.trials.preparation import (
    TaskPreparation,
)
from grpo_pipeline.pipelines.experiments.trials.records import (
    CompareError,
    Plan,
    StoredTrials,
    TrialHeader,
    TrialRecord,
)
from grpo_pipeline.runs.executor import ExecutorParams
from grpo_pipeline.runs.progress import print_line
from grpo_pipeline.runs.shared_display import SharedDisplay

# (prediction rows, rule) -> metric -> value on the whole split, without those that are undefined
Score = Callable[[pd.DataFrame, str], Mapping[str, float]]


@dataclass(frozen=True)
class Bench:
    """The task, data and settings that all trials of a plan share.

    Attributes:
        preparation: the task.
        examples: data of the task, with the split of trials that have no split of their own.
        score: computes the metrics that are stored beside a trial's rows.
        split: the split whose rows are scored.
        keeps_weights: whether the final weights are stored.
        executor: parameters of the processes that train trials; None trains them one by one in this process.
    """

    preparation: TaskPreparation
    examples: Any
    score: Score
    split: str = "test"
    keeps_weights: bool = False
    executor: ExecutorParams | None = None


def run_trials(
    plan: Plan, bench: Bench, before: StoredTrials
) -> Iterator[TrialRecord | Literal[False]]:
    """Train the unfinished trials; yields a record for each trial that was run, finished or failed, when it is done.

    Args:
        plan: arms and trials.
        bench: task and data.
        before: the trials of earlier runs. A finished trial with the same digest is kept; all others are run.

    Yields:
        First False, because a generator node must yield even if no trial is left; then the records.

    Raises:
        CompareError: after the last trial, if no trial of the plan is finished.
    """
    digests = {
        trial.key: trial_digest(
            bench.preparation, plan.arms[trial.arm], trial, bench.examples, split=bench.split
        )
        for trial in plan.trials
    }
    finished = {
        key: header.digest for key, header in before.headers.items() if header.status == "finished"
    }
    kept = [key for key, digest in digests.items() if finished.get(key) == digest]
    if kept:
        print_line(
            f"{len(kept)} of {len(plan.trials)} trials are finished and kept: {shortened(kept)}"
        )
    yield False
    to_do = [
        Assignment(number, trial, plan.arms[trial.arm])
        for number, trial in enumerate(plan.trials, start=1)
        if trial.key not in kept
    ]
    devices = [plan.arms[one.trial.arm].training.device for one in to_do]
    workers = min(bench.executor.count(devices) if bench.executor else 1, len(to_do))
    place = TrialContext(bench.preparation, bench.examples, bench.split, bench.keeps_weights)
    failed: list[TrialHeader] = []
    weights = {one.trial.key: 1.0 for one in to_do}
    with closing(
        SharedDisplay(
            f"{bench.preparation.task}: {len(to_do)} trials", weights, at_once=max(workers, 1)
        )
    ) as shown:
        if bench.executor is not None and workers > 1:
            outcomes = at_once(to_do, place, shown, params=bench.executor, workers=workers)
        else:
            outcomes = one_by_one(to_do, place, shown)
        with closing(outcomes):
            for one, outcome in outcomes:
                record = record_of(one, outcome, bench, digest=digests[one.trial.key])
                if record.header.status == "failed":
                    failed.append(record.header)
                    print_line(
                        f"trial {one.trial.key} failed, the others go on: {record.header.reason}"
                    )
                yield record
    report(failed, total=len(plan.trials))


def record_of(given: Assignment, outcome: Outcome, bench: Bench, *, digest: str) -> TrialRecord:
    """Build the record of a finished or failed trial, with its metrics."""
    header = TrialHeader(
        key=given.trial.key,
        task=bench.preparation.task,
        arm=given.trial.arm,
        seed=given.trial.seed,
        fold=given.trial.fold,
        status="failed",
        seconds=outcome.seconds,
        digest=digest,
        parameters=given.arm.parameters,
        reason=outcome.reason,
    )
    done = outcome.trained
    if done is None:
        return TrialRecord(header, traceback=outcome.traceback)
    try:
        metrics = bench.score(done.predictions, given.arm.description.rule)
    except Exception as error:  # noqa: BLE001 - rows that cannot be scored fail their trial alone
        lost = failure(error, seconds=outcome.seconds)
        return TrialRecord(replace(header, reason=lost.reason), traceback=lost.traceback)
    finished = replace(header, status="finished", metrics=dict(metrics))
    return TrialRecord(finished, done.predictions, done.metric_rows, done.weights)


def report(failed: list[TrialHeader], *, total: int) -> None:
    """Log which trials failed; raise if all of them did."""
    if not failed:
        return
    if len(failed) == total:
        raise CompareError(
            f"at least one trial must finish, got {total} failures; the first is {failed[0].key}: {failed[0].reason}"
        )
    print_line(
        f"{len(failed)} of {total} trials failed and are tried again by the next run: {shortened([h.key for h in failed])}"
    )


def shortened(keys: list[str], *, limit: int = 6) -> str:
    """Return the first few keys and how many more there are."""
    more = f" and {len(keys) - limit} more" if len(keys) > limit else ""
    return ", ".join(keys[:limit]) + more
