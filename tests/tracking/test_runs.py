"""The runs against a server that speaks MLflow's protocol and can die, and against a database."""

import json
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from mlflow.entities import RunStatus
from mlflow.tracking import MlflowClient
from mlflow_server import Server

from grpo_pipeline.runs.process import process_tags
from grpo_pipeline.tracking.experiment import HIDDEN, find_experiment, log_params
from grpo_pipeline.tracking.flat_parameters import MAX_VALUE_LENGTH
from grpo_pipeline.tracking.runs import PARENT, Runs


def test_a_server_here_leaves_no_thread_that_slows_later_tests(tmp_path):
    before = {*threading.enumerate()}
    with Server(tmp_path):
        started = {*threading.enumerate()} - before
    for thread in started:
        thread.join(5)
    assert [thread.is_alive() for thread in started] == [False]


def test_a_server_that_dies_in_the_middle_costs_one_line(tiny, tmp_path, monkeypatch):
    """It takes the first metrics and dies at the next; training goes on for twenty steps more and all rows are on disk."""
    monkeypatch.setenv("TINY_KILL", "writes:1000000")  # rows are sent at once
    with Server(tmp_path, batches=1) as server:
        start = time.monotonic()
        done = tiny.run("attention.training.steps=12", "attention.training.step_seconds=0.05", uri=server.uri)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"MLflow at {server.uri} cannot be reached (")
    assert lines[0].endswith("; the run goes on, metrics are kept in data/07_model_output")
    assert time.monotonic() - start < 110
    for arm in ("grpo", "supervised"):
        rows = [json.loads(line) for line in (tiny.path / f"data/07_model_output/{arm}/metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if row["split"] == "train"] == list(range(12))
    logged = [m["key"] for path, body in server.posted if path == "runs/log-batch" for m in body.get("metrics", [])]
    assert "reward/mean" in logged


def test_a_store_of_files_that_fails_costs_the_files_only(tiny, tmp_path):
    """The server is well, the bucket cannot be reached: one line, and the metrics arrive."""
    (tmp_path / "file").write_text("where a folder should be")
    with Server(tmp_path / "file" / "bucket") as server:
        done = tiny.run(uri=server.uri)
    assert done.returncode == 0
    assert done.stderr == "MLflow cannot keep files (Not a directory); the run goes on with parameters and metrics\n"
    logged = [m["key"] for path, body in server.posted if path == "runs/log-batch" for m in body.get("metrics", [])]
    assert logged.count("loss/total") == 12
    assert logged.count("test/auroc") == 3  # of each arm, and of the parent that speaks of one
    ends = [body["status"] for path, body in server.posted if path == "runs/update"]
    assert ends == ["FINISHED"] * 3


@pytest.fixture
def store(tmp_path, empty_store):
    path = tmp_path / "mlflow.db"
    path.write_bytes(empty_store.read_bytes())
    return f"sqlite:///{path}"


@pytest.fixture
def lost():
    return []


@pytest.fixture
def open_runs(store, tmp_path, lost):
    opened = []

    def make(**tags):
        runs = Runs(store, experiment="x", project=tmp_path, on_lost=lost.append)
        runs.open("parent", tags=tags, artifacts=str(tmp_path / "mlruns"))
        opened.append(runs)
        return runs

    yield make
    assert lost == []


CHILD = "task.arm"


def open_child(runs, *, resumed):
    """Open a child run and return its id."""
    runs.open_child(CHILD, tags={}, resumed=resumed)
    return runs.child_id(CHILD)


def rows(first, last):
    return [{"step": step, "split": "train", "loss": step / 2} for step in range(first, last)]


def test_a_thousand_rows_arrive_complete_and_in_order(open_runs, store):
    runs = open_runs()
    child = open_child(runs, resumed=None)
    for step in range(1500):
        runs.log_rows(CHILD, [{"step": step, "split": "train", **{f"m{i}": step + i for i in range(7)}}])
    runs.end({CHILD: "FINISHED", PARENT: "FINISHED"})
    for name in ("m0", "m6"):
        history = MlflowClient(store).get_metric_history(child, name)
        assert [(m.step, m.value) for m in history] == [(step, step + int(name[1])) for step in range(1500)]


def test_a_continued_run_takes_no_row_twice(open_runs, store):
    first = open_runs()
    child = open_child(first, resumed=None)
    first.log_rows(CHILD, rows(0, 5))
    first.end({CHILD: "KILLED", PARENT: "KILLED"})
    second = open_runs()
    assert open_child(second, resumed=child) == child
    assert MlflowClient(store).get_run(child).info.status == "RUNNING"
    second.log_rows(CHILD, rows(3, 8))
    second.log_rows(CHILD, [{"step": 2, "split": "val", "loss": 9.0}])
    second.end({CHILD: "FINISHED", PARENT: "FINISHED"})
    client = MlflowClient(store)
    assert [m.step for m in client.get_metric_history(child, "loss")] == list(range(8))
    assert [m.step for m in client.get_metric_history(child, "val/loss")] == [2]
    assert client.get_run(child).data.tags["mlflow.parentRunId"] == second.parent


def test_a_run_that_is_gone_is_replaced(open_runs, store):
    runs = open_runs()
    child = open_child(runs, resumed="0" * 32)
    assert child not in ("", "0" * 32)
    runs.end({CHILD: "FINISHED", PARENT: "FINISHED"})
    assert MlflowClient(store).get_run(child).data.tags[f"{HIDDEN}resumed.from"] == "0" * 32


def test_only_what_died_is_ended(open_runs, store, tmp_path):
    client = MlflowClient(store)
    experiment = find_experiment(client, "x", artifacts=str(tmp_path / "mlruns"))
    mine = {"project.path": str(tmp_path), **process_tags()}
    kinds = {
        "dead": {**mine, "process.pid": str(2**22 + 1)},
        "recycled id": {**mine, "process.start": "1"},
        "alive": mine,
        "another project": {**mine, "project.path": "/elsewhere", "process.pid": str(2**22 + 1)},
        "by hand": {},
    }
    ids = {name: client.create_run(experiment, tags=tags).info.run_id for name, tags in kinds.items()}
    runs = open_runs()
    runs.end({PARENT: "FINISHED"})
    statuses = {name: client.get_run(run).info.status for name, run in ids.items()}
    assert {name for name, status in statuses.items() if status == "KILLED"} == {"dead", "recycled id"}
    assert {status for name, status in statuses.items() if name not in ("dead", "recycled id")} == {RunStatus.to_string(1)}


def test_a_refused_name_costs_one_entry_not_the_run(open_runs, store):
    runs = open_runs()
    child = open_child(runs, resumed=None)
    runs.log_scores(CHILD, {"bad name!": 1.0})
    runs.log_scores(CHILD, {"good": 1.0})
    runs.end({CHILD: "FINISHED", PARENT: "FINISHED"})
    assert MlflowClient(store).get_run(child).data.metrics == {"good": 1.0}


@pytest.mark.parametrize("tag_long", [False, True])
def test_many_and_long_parameters(store, tmp_path, tag_long):
    client = MlflowClient(store)
    run = client.create_run(find_experiment(client, "x", artifacts=str(tmp_path))).info.run_id
    params = {f"p{i:03}": str(i) for i in range(250)} | {"long": "x" * 2000}
    log_params(client, run, params, tag_long=tag_long)
    data = client.get_run(run).data
    assert len(data.params) == 251
    assert data.params["p249"] == "249"
    assert len(data.params["long"]) == MAX_VALUE_LENGTH
    assert data.tags.get(f"{HIDDEN}long") == ("x" * 2000 if tag_long else None)
    log_params(client, run, {"p000": "changed", "new": "1"}, tag_long=False)
    assert (client.get_run(run).data.params["p000"], client.get_run(run).data.params["new"]) == ("0", "1")


def test_a_deleted_experiment_is_restored(store, tmp_path):
    client = MlflowClient(store)
    first = find_experiment(client, "x", artifacts=str(tmp_path))
    assert client.get_experiment(first).tags["mlflow.experimentKind"] == "custom_model_development"
    client.delete_experiment(first)
    assert find_experiment(client, "x", artifacts=str(tmp_path)) == first
    assert client.get_experiment(first).lifecycle_stage == "active"


def test_a_table_is_cut_to_what_can_be_looked_at(open_runs, store):
    runs = open_runs()
    runs.log_table(PARENT, pd.DataFrame({"x": range(600)}), "tables/x.json")
    runs.end({PARENT: "FINISHED"})
    folder = MlflowClient(store).download_artifacts(runs.parent, "tables")
    with open(f"{folder}/x.json") as file:
        assert [row[0] for row in json.load(file)["data"]] == list(range(500))


def test_what_a_kill_kept_from_a_continued_run_is_added_and_nothing_twice(open_runs, store):
    """Rows of two kinds share steps; of step 2 the one was written and the other not; a score that stays is written once."""
    first = open_runs()
    child = open_child(first, resumed=None)
    first.log_rows(CHILD, rows(0, 3))
    first.log_rows(CHILD, [{"step": step, "split": "train", "grad": 0.5} for step in (0, 1)])
    first.log_scores(CHILD, {"test/auroc": 0.75, "test/f1": 0.25})
    first.log_table(CHILD, pd.DataFrame({"sample": [0, 1]}), "tables/probe.json")
    first.end({CHILD: "KILLED", PARENT: "KILLED"})
    second = open_runs()
    open_child(second, resumed=child)
    second.log_rows(CHILD, rows(3, 4))
    second.log_rows(CHILD, [*rows(0, 4), *({"step": step, "split": "train", "grad": 0.5} for step in (0, 1, 2))])
    second.log_scores(CHILD, {"test/auroc": 0.75, "test/f1": 0.5})
    second.log_table(CHILD, pd.DataFrame({"sample": [0, 1]}), "tables/probe.json")
    second.end({CHILD: "FINISHED", PARENT: "FINISHED"}, ends={CHILD: 1_900_000_000_000})
    client = MlflowClient(store)
    assert [m.step for m in client.get_metric_history(child, "loss")] == [0, 1, 2, 3]
    assert sorted(m.step for m in client.get_metric_history(child, "grad")) == [0, 1, 2]
    assert [m.value for m in client.get_metric_history(child, "test/auroc")] == [0.75]
    assert [m.value for m in client.get_metric_history(child, "test/f1")] == [0.25, 0.5]
    table = client.download_artifacts(child, "tables/probe.json")
    assert json.loads(Path(table).read_text())["data"] == [[0], [1]]
    assert client.get_run(child).info.end_time == 1_900_000_000_000
