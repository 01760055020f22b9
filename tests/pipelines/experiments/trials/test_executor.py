"""Trials in processes of their own: the same bits as one by one, and what happens when one of the processes dies."""

import os
from dataclasses import replace
from queue import SimpleQueue

import pandas as pd
import pytest
import torch
from processes import workers_of
from tiny import AT_ONCE
from tiny_grid import Memory, tiny_bench, tiny_plan

from grpo_pipeline.pipelines.experiments.trials import executor
from grpo_pipeline.pipelines.experiments.trials.engine import run_trials
from grpo_pipeline.runs.executor import Event
from grpo_pipeline.runs.progress_words import Moment

KEYS = ["supervised.seed0", "grpo.seed0", "supervised.seed1", "grpo.seed1"]
PLAN = tiny_plan()


def run(plan, bench, *, each=lambda record: None):
    store = Memory()
    for record in run_trials(plan, bench, store):
        if record is not False:
            store.keep(record)
            each(record)
    return store


@pytest.mark.slow
def test_processes_give_the_same_bits_as_one_by_one_and_none_is_left(forked_workers, monkeypatch, capsys):
    monkeypatch.setenv("GRPO_PROGRESS", "lines")
    bench = tiny_bench(keeps_weights=True)
    alone, counted = run(PLAN, bench), []
    capsys.readouterr()
    together = run(PLAN, replace(bench, executor=AT_ONCE), each=lambda record: counted.append(len(workers_of(os.getpid()))))
    assert sorted(together.records) == sorted(KEYS)
    assert max(counted) == 2  # one ends when nothing is left for it
    assert workers_of(os.getpid()) == []
    for key, record in alone.records.items():
        other = together.records[key]
        pd.testing.assert_frame_equal(record.predictions, other.predictions, check_exact=True)
        timeless = [[{k: v for k, v in row.items() if "seconds" not in k and "_ms" not in k} for row in one.metric_rows]
                    for one in (record, other)]  # fmt: skip
        assert [row.keys() for row in timeless[0]] == [row.keys() for row in timeless[1]]
        assert {name: torch.equal(one, other.weights.tensors[name]) for name, one in record.weights.tensors.items()} == (
            dict.fromkeys(record.weights.tensors, True)
        )
        assert replace(record.header, seconds=0.0) == replace(other.header, seconds=0.0)
    assert capsys.readouterr().err.splitlines()[-1].startswith("attention: 4 trials: 100%")


class Dying:
    """A pool in which one trial dies with its process, and all others are trained here."""

    def __init__(self, jobs, params, *, at_once, first):
        assert (at_once, first.arguments[0]) == (2, "attention")
        list(executor.open_worker(*first.arguments))
        self.events, self.is_closed = SimpleQueue(), False
        for job in jobs:
            is_lost = job.name == "grpo.seed0"
            died = RuntimeError("its process ended by signal 9, twice")
            found = died if is_lost else next(executor.train_in_worker(*job.arguments))
            self.events.put(Event(job, "moment", Moment("train", 1, 2, {})))
            self.events.put(Event(job, "error" if is_lost else "item", found))
            self.events.put(Event(job, "end"))

    def close(self):
        self.is_closed = True


def test_a_trial_that_dies_with_its_process_is_a_failed_one_and_the_others_go_on(monkeypatch):
    pools = []
    monkeypatch.setattr(executor, "Pool", lambda *given, **more: pools.append(Dying(*given, **more)) or pools[0])
    store = run(PLAN, replace(tiny_bench(), executor=AT_ONCE))
    ends = {key: record.header.status for key, record in store.records.items()}
    assert ends == dict.fromkeys(KEYS, "finished") | {"grpo.seed0": "failed"}
    assert store.headers["grpo.seed0"].reason == "RuntimeError: its process ended by signal 9, twice"
    assert pools[0].is_closed


def test_trials_that_may_share_a_warm_start_have_the_same_start(monkeypatch):
    seen = []

    class Pool(Dying):
        def __init__(self, jobs, params, **more):
            seen.extend((job.name, job.start) for job in jobs)
            super().__init__(jobs[:1], params, **more)

    monkeypatch.setattr(executor, "Pool", Pool)
    stopped = run_trials(PLAN, replace(tiny_bench(), executor=AT_ONCE), Memory())
    assert [next(stopped), next(stopped).header.key] == [False, "supervised.seed0"]
    stopped.close()
    assert seen == [(key, (int(key[-1]), None)) for key in KEYS]
