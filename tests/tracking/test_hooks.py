"""The traces of a whole ``kedro run`` in MLflow: structure, parameters, metrics, files, and its end."""

import json
import math
import re
import shutil
import socket
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml

from grpo_pipeline.datasets.metric_stream import MetricStreamDataset
from grpo_pipeline.tracking.experiment import HIDDEN
from grpo_pipeline.tracking.metric_points import row_points


@pytest.fixture(scope="module")
def finished(make_tiny):
    """One finished run, started from a folder inside the project."""
    tiny = make_tiny()
    done = tiny.run("attention.training.step_seconds=0.05", cwd="data")
    assert done.returncode == 0, done.stderr
    return tiny, done


@pytest.fixture(scope="module")
def runs(finished):
    return {run.info.run_name: run for run in finished[0].runs()}


def test_a_parent_and_a_child_for_each_arm(runs):
    assert sorted(runs) == ["__default__", "attention.grpo", "attention.supervised"]
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    parent = runs["__default__"].info.run_id
    children = [run for name, run in runs.items() if name != "__default__"]
    assert [run.data.tags["mlflow.parentRunId"] for run in children] == [parent, parent]
    assert [run.data.tags["task"] for run in children] == ["attention", "attention"]
    assert {run.data.tags["arm"] for run in children} == {"grpo", "supervised"}


def test_an_arm_begins_and_ends_with_its_own_training(finished):
    parent, first, second = (run.info for run in finished[0].runs())
    assert parent.start_time <= first.start_time < first.end_time <= second.start_time < second.end_time <= parent.end_time
    assert [arm.end_time - arm.start_time for arm in (first, second) if arm.end_time - arm.start_time < 6 * 50] == []


def test_the_store_is_in_the_project_not_in_the_folder_of_the_command(finished):
    project = finished[0].path
    assert sorted(path.name for path in project.glob("ml*")) == ["mlflow.db", "mlruns"]
    assert not list((project / "data").glob("ml*"))


def test_the_parent_holds_the_parameters_that_are_not_the_defaults(runs):
    assert runs["__default__"].data.params == {"attention.training.step_seconds": "0.05"}


def test_a_child_holds_also_what_tells_it_from_the_other_arms(runs):
    grpo, supervised = runs["attention.grpo"].data.params, runs["attention.supervised"].data.params
    assert grpo == {"attention.training.step_seconds": "0.05", "attention.arm.offset": "0.5"}
    assert supervised == {**grpo, "attention.arm.offset": "0.25"}


def test_people_see_few_tags_and_programs_find_the_others(runs):
    tags = {name: run.data.tags for name, run in runs.items()}
    shown = {name: {tag: own[tag] for tag in own if not tag.startswith("mlflow.")} for name, own in tags.items()}
    own = {"task": "attention", "seed": "0", "env": "local"}
    assert shown == {"__default__": own, **{f"attention.{arm}": {**own, "arm": arm} for arm in ("grpo", "supervised")}}


def test_the_run_can_be_traced_to_code_and_command(runs):
    tags = runs["__default__"].data.tags
    assert tags["mlflow.source.name"] == "kedro run --params attention.training.step_seconds=0.05"
    assert tags[f"{HIDDEN}kedro.pipeline"] == "__default__"
    assert {"mlflow.source.git.commit", f"{HIDDEN}git.dirty", f"{HIDDEN}process.pid", "mlflow.user"} <= set(tags)


@pytest.mark.parametrize(("arm", "offset"), [("grpo", 0.5), ("supervised", 0.25)])
def test_the_metric_history_is_what_the_loop_yielded(finished, runs, arm, offset):
    tiny, run_id = finished[0], runs[f"attention.{arm}"].info.run_id

    def history(name):
        return [(metric.step, metric.value) for metric in tiny.client.get_metric_history(run_id, name)]

    assert history("reward/mean") == [(step, offset + step / 10) for step in range(6)]
    assert history("loss/total") == [(step, 1 / (step + 1)) for step in range(6)]
    assert history("val/reward/mean") == [(2, offset + 0.1), (5, offset + 0.25)]


def test_the_comparison_is_spread_over_the_runs(finished, runs):
    """The parent has the arm that is spoken of and its difference; all figures with their intervals are a table."""

    def scores(run):
        return {name: value for name, value in run.data.metrics.items() if name.startswith(("test/", "difference/", "baseline/"))}

    assert {name: scores(run) for name, run in runs.items()} == {
        "attention.supervised": {"test/auroc": 0.75},
        "attention.grpo": {"test/auroc": 0.625},
        "__default__": {"test/auroc": 0.625, "difference/auroc": -0.125},
    }
    folder = finished[0].client.download_artifacts(runs["__default__"].info.run_id, "tables")
    table = json.loads((Path(folder) / "comparison.json").read_text())
    found = {tuple(row[:3]): row[3:6] for row in table["data"]}
    assert found["difference to the control", "grpo", "auroc"] == [-0.125, -0.25, 0.0]
    assert found["other rule", "uniform", "auroc"] == [0.5, 0.25, 0.75]
    shown = json.loads(runs["__default__"].data.tags["mlflow.loggedArtifacts"])
    assert shown == [{"path": "tables/comparison.json", "type": "table"}]


def files(tiny, run, folder=None):
    return sorted(item.path for item in tiny.client.list_artifacts(run.info.run_id, folder))


def test_files_and_tables_are_kept(finished, runs):
    tiny = finished[0]
    assert files(tiny, runs["__default__"]) == ["comparison.json", "config", "report.html", "tables"]
    assert files(tiny, runs["attention.grpo"]) == ["metrics.jsonl", "predictions.csv", "probe.csv", "tables"]
    folder = Path(tiny.client.download_artifacts(runs["attention.grpo"].info.run_id, ""))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["split"] == "train"] == [0, 1, 2, 3, 4, 5]
    assert pd.read_csv(folder / "predictions.csv")["prob"].tolist() == [0.25, 0.5]
    assert json.loads((folder / "tables/probe_table.json").read_text()) == {
        "columns": ["sample", "reward"],
        "data": [[0, 0.25], [1, 0.75]],
    }


def test_the_configuration_is_kept_without_credentials(finished, runs):
    tiny = finished[0]
    folder = Path(tiny.client.download_artifacts(runs["__default__"].info.run_id, "config"))
    parameters = yaml.safe_load((folder / "parameters.yml").read_text())
    assert parameters["attention"]["training"] == {"steps": 6, "step_seconds": 0.05, "stop": "", "stop_at": -1}
    text = (folder / "catalog.yml").read_text()
    assert "metrics.jsonl" in text
    for secret in ("hunter2", "s3cr3t", "my_account"):
        assert secret not in text


def test_the_data_digest_is_an_input_of_every_run(runs):
    for run in runs.values():
        inputs = [(item.dataset.name, item.dataset.digest) for item in run.inputs.dataset_inputs]
        assert inputs == [("attention.examples", ("0123456789abcdef" * 4)[:36])]
        assert run.data.tags[f"{HIDDEN}data.attention.examples.digest"] == "0123456789abcdef" * 4


def test_the_checkpoint_remembers_its_child(finished, runs):
    saved = json.loads((finished[0].path / "data/06_models/grpo.json").read_text())
    assert len(saved["extra"].pop("run")) == 12  # whose it is, for the record of runs
    assert saved == {"step": 5, "extra": {"mlflow_run_id": runs["attention.grpo"].info.run_id}}


def test_the_end_is_a_table_and_the_places_to_look(finished):
    output = finished[1].stdout
    rows = [re.split(r"\s{2,}", line.strip()) for line in output.splitlines() if line.startswith("AUROC ↑")]
    assert rows[:2] == [
        ["AUROC ↑", "2", "0.750 [0.500, 1.000]", "0.625 [0.250, 0.875]"],
        ["AUROC ↑", "-0.125 [-0.250, +0.000]"],
    ]
    assert "(reads the test outline) ↑: no core has a lesion outline" in " ".join(output.split())
    assert "GRPO did not help." in output
    for expected in ("08_reporting/report.html", "grpo ui graph", "grpo ui (experiment"):
        assert expected in output


def test_some_pipelines_are_not_tracked(make_tiny):
    tiny = make_tiny()
    done = tiny.run(pipelines="attention_data")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tiny.path / "mlflow.db").exists()


def test_an_error_is_recorded_where_it_happened(tiny):
    """The arm that was done, if any, has finished; the one that failed and the parent have failed."""
    done = tiny.run("attention.training.stop=error", "attention.training.stop_at=4")
    assert done.returncode == 1
    assert tiny.statuses() == [("__default__", "FAILED"), ("attention.grpo", "FAILED"), ("attention.supervised", "FAILED")] or (
        tiny.statuses() == [("__default__", "FAILED"), ("attention.grpo", "FAILED")]
    )
    for run in tiny.runs()[:2]:
        assert run.data.tags["error.type"] == "ValueError"
        assert run.data.tags["error.message"] == "loss must be finite, got nan at step 4"
    history = tiny.client.get_metric_history(tiny.runs()[1].info.run_id, "reward/mean")
    assert [metric.step for metric in history] == [0, 1, 2, 3]


def test_a_killed_run_goes_on_in_its_own_child(tiny):
    """SIGKILL at step 4 leaves RUNNING and a checkpoint of step 3; the next run ends the one and goes on with the other."""
    killed = tiny.run("attention.training.stop=SIGKILL", "attention.training.stop_at=4", "attention.training.step_seconds=0.3")
    assert killed.returncode == -9
    assert {status for _, status in tiny.statuses()} == {"RUNNING"}
    old = {run.info.run_name: run.info.run_id for run in tiny.runs()}
    child = next(name for name in old if name != "__default__")
    arm = child.removeprefix("attention.")
    checkpoint = json.loads((tiny.path / f"data/06_models/{arm}.json").read_text())
    assert len(checkpoint["extra"].pop("run")) == 12
    assert checkpoint == {"step": 3, "extra": {"mlflow_run_id": old[child]}}

    resumed = tiny.run("resume=auto")
    assert resumed.returncode == 0
    assert all("ended without a word" in line for line in resumed.stderr.splitlines())
    runs = {run.info.run_id: run for run in tiny.runs()}
    assert len(runs) == 4
    assert runs[old["__default__"]].info.status == "KILLED"
    assert runs[old["__default__"]].data.tags["ended"] == "its process was found dead by a later run"
    parents = {run_id for run_id, run in runs.items() if run.info.run_name == "__default__"}
    continued = runs[old[child]]
    assert continued.info.status == "FINISHED"
    assert continued.data.tags["mlflow.parentRunId"] == (parents - {old["__default__"]}).pop()
    # MLflow lets no parameter be changed: it holds those of the run that began it.
    assert continued.data.params["attention.training.step_seconds"] == "0.3"
    history = tiny.client.get_metric_history(old[child], "reward/mean")
    # A row that the kill took from MLflow comes from the file at the end of the run: each step once, in whatever order.
    assert sorted(metric.step for metric in history) == [0, 1, 2, 3, 4, 5]
    table = MetricStreamDataset(str(tiny.path / f"data/07_model_output/{arm}/metrics.jsonl")).load()
    assert table[table["split"] == "train"]["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert "probe.csv" in files(tiny, continued)

    assert tiny.run().returncode == 0  # without resume=auto everything is new
    assert len(tiny.runs()) == 7
    assert not {run.info.run_id for run in tiny.runs()[4:]} & set(runs)


@pytest.mark.slow
@pytest.mark.parametrize("points", [("saves:9",), ("writes:1", "saves:4"), ("writes:3",)])
def test_after_any_kill_mlflow_holds_the_rows_of_the_files_once(make_tiny, empty_store, monkeypatch, points):
    """Killed before or after MLflow has taken rows, between the arms, in the second, and twice; then resumed.

    ``saves`` kills before any row was taken: what the first arm had trained to its end is missing, too.
    """
    tiny = make_tiny()
    shutil.copy(empty_store, tiny.path / "mlflow.db")
    for point in points:
        monkeypatch.setenv("TINY_KILL", point)
        assert tiny.run("resume=auto", "attention.training.step_seconds=0.05").returncode == -9
    monkeypatch.delenv("TINY_KILL")
    for _ in range(len(points)):  # a second finds everything done, and evaluates again
        resumed = tiny.run("resume=auto")
        assert resumed.returncode == 0, resumed.stderr
        for arm in ("grpo", "supervised"):
            run = tiny.client.get_run(child_of_the_files(tiny, arm))
            lines = (tiny.path / f"data/07_model_output/{arm}/metrics.jsonl").read_text().splitlines()
            expected = sorted(point for line in lines for point in row_points(json.loads(line)))
            names = [name for name in run.data.metrics if not name.startswith("test/")]
            held = [(m.key, m.value, m.step) for name in names for m in tiny.client.get_metric_history(run.info.run_id, name)]
            assert sorted(held) == [(point.name, point.value, point.step) for point in expected]
            once = tiny.client.get_metric_history(run.info.run_id, "test/auroc")
            assert len(once) == 1
            assert run.info.status == "FINISHED"


def child_of_the_files(tiny, arm):
    """The run that an arm's checkpoint remembers."""
    return json.loads((tiny.path / f"data/06_models/{arm}.json").read_text())["extra"]["mlflow_run_id"]


def test_a_closed_port_costs_one_line_and_seconds(tiny):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.perf_counter()
    done = tiny.run(uri=f"http://user:hunter2@127.0.0.1:{port}")
    assert time.perf_counter() - start < 100
    assert done.returncode == 0
    assert done.stderr == (
        f"MLflow at http://127.0.0.1:{port} cannot be reached (Connection refused); "
        "the run goes on, metrics are kept in data/07_model_output\n"
    )
    assert "MLflow  cannot be reached (Connection refused)" in done.stdout
    assert sum("MLflow" in line for line in done.stdout.splitlines()) == 1
    assert "INFO" not in done.stdout
    table = MetricStreamDataset(str(tiny.path / "data/07_model_output/grpo/metrics.jsonl")).load()
    assert table["step"].max() == 5
    assert math.isclose(table["reward/mean"].max(), 1.0)
