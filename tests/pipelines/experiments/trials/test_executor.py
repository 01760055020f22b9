"""Trials in processes of their own: the same bits as one by one, and what happens when one of the processes dies."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from tiny_grid import Memory, tiny_bench, tiny_plan

from grpo_pipeline.pipelines.experiments.trials import executor
from grpo_pipeline.pipelines.experiments.trials.engine import run_trials

KEYS = ["supervised.seed0", "grpo.seed0", "supervised.seed1", "grpo.seed1"]
PLAN = tiny_plan()


def run(plan, bench, *, each=lambda record: None):
    store = Memory()
    for record in run_trials(plan, bench, store):
        if record is not False:
            store.keep(record)
            each(record)
    return store


def children():
    """Return the processes of the trials that this one has started."""
    table = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=2) for line in table.splitlines() if executor.WORKER in line]
    return [int(pid) for pid, parent, _ in lines if int(parent) == os.getpid()]


@pytest.mark.slow
def test_processes_give_the_same_bits_as_one_by_one_and_none_is_left(monkeypatch, capsys):
    monkeypatch.setenv("GRPO_PROGRESS", "lines")
    bench = tiny_bench(keeps_weights=True)
    alone, counted = run(PLAN, bench), []
    capsys.readouterr()
    together = run(PLAN, replace(bench, workers=2), each=lambda record: counted.append(len(children())))
    assert sorted(together.records) == sorted(KEYS)
    assert set(counted) == {2}
    assert children() == []
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
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "4 trials, 2 at a time, each in a process of its own"
    assert sorted(line.split(" is done: ")[1].split(",")[0] for line in said[1:]) == sorted(KEYS)


@pytest.mark.slow
def test_a_trial_whose_process_dies_is_tried_again_and_the_others_go_on(monkeypatch):
    """The first process is killed as soon as it has a trial, and every later one that is given the same trial."""
    killed, give = [], executor.Lane.give

    def give_and_kill(lane, job):
        give(lane, job)
        if job.trial.key == "grpo.seed0" or not killed:
            killed.append(job.trial.key)
            os.kill(lane.process.pid, signal.SIGKILL)

    monkeypatch.setattr(executor.Lane, "give", give_and_kill)
    store = run(PLAN, replace(tiny_bench(), workers=2))
    assert sorted(killed) == ["grpo.seed0", "grpo.seed0", "supervised.seed0"]
    ends = {key: record.header.status for key, record in store.records.items()}
    assert ends == dict.fromkeys(KEYS, "finished") | {"grpo.seed0": "failed"}
    assert store.headers["grpo.seed0"].reason == "its process ended by signal 9, twice; where memory is short, take fewer workers"
    assert children() == []


def test_whoever_stops_the_run_ends_its_processes():
    stopped = run_trials(PLAN, replace(tiny_bench(), workers=2), Memory())
    assert next(stopped) is False
    next(stopped)
    assert len(children()) == 2
    stopped.close()
    assert children() == []


PARENT = """
import sys
from dataclasses import replace
sys.path.insert(0, {support!r})
from tiny_grid import Memory, tiny_bench, tiny_plan
from grpo_pipeline.pipelines.experiments.trials.engine import run_trials
for record in run_trials(tiny_plan(seeds=range(40)), replace(tiny_bench(), workers=2), Memory()):
    print(record and record.header.key, flush=True)
"""


def test_processes_end_with_a_run_that_is_killed(tmp_path):
    """No guard around the script's body: the processes do not run it again."""
    script = tmp_path / "script.py"
    support = Path(__file__).resolve().parents[3] / "support"
    script.write_text(PARENT.format(support=str(support)), encoding="utf-8")
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "False\n"
    assert parent.stdout.readline().strip() in KEYS
    table = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    workers = [
        int(line.split()[0]) for line in table.splitlines() if executor.WORKER in line and line.split()[1] == str(parent.pid)
    ]
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in workers):
        time.sleep(0.05)
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []
