"""`kedro run --pipelines compare`: killed after the first trial, started again, and compared with a run that was not stopped."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from browser import looks_right
from forked_kedro import kedro_command
from kedro_processes import clean_environ, command_of, newest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from told_answers import same_everywhere

from grpo_pipeline.tracking.database import create_database

KEYS = ["supervised.seed0", "grpo.seed0", "supervised.seed1", "grpo.seed1"]
COMMAND = ("run", "--env", "smoke", "--pipelines", "compare")
REPORTS = Path("data/08_reporting/attention_smoke/compare")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def launch(project: Path, *args: str) -> "subprocess.Popen[str]":
    environ = clean_environ(COLUMNS="120")
    environ.pop("GRPO_PROGRESS", None)
    pipe = subprocess.PIPE
    return subprocess.Popen(kedro_command(*COMMAND, *args), cwd=project, env=environ, stdout=pipe, stderr=pipe, text=True)


def compare(project: Path, *args: str) -> "subprocess.CompletedProcess[str]":
    process = launch(project, *args)
    said = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, *said)


def trials(project: Path) -> Path:
    return project / "data/07_model_output/attention_smoke/compare/trials"


def result(project: Path) -> dict:
    """The document without what a clock decides."""
    document = json.loads(newest(project / REPORTS / "result.json").read_text())
    for trial in document["trials"].values():
        assert trial.pop("seconds") > 0
    return document


def runs(project: Path) -> list[Run]:
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("grpo_pipeline_smoke")
    return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])


def is_logged(project: Path, key: str) -> bool:
    """Whether a trial is stored and its child run has ended: the signal must not fall between the two."""
    stored = (trials(project) / key / "trial.json").exists()
    return stored and any(command_of(run) == key and run.info.status == "FINISHED" for run in runs(project))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, make_project) -> tuple[Path, list[str], "subprocess.CompletedProcess[str]"]:
    """A project whose comparison was stopped after the first trial, the trials it then had, and the run that finished it."""
    folder = tmp_path_factory.mktemp("compare")
    for attempt in range(4):
        project = make_project(folder / str(attempt) / "project")
        create_database(f"sqlite:///{project / 'mlflow.db'}")  # else is_logged asks one that is not there
        process, is_seen = launch(project), False
        while process.poll() is None and not is_seen:
            time.sleep(0.02)
            is_seen = is_logged(project, KEYS[0])
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=600)
        if is_seen:  # else all trials had ended on a busy machine before the first was seen
            break
    assert process.returncode == 143, said
    assert "Stopped by SIGTERM. The same command goes on: finished trials are kept" in said
    kept = [key for key in KEYS if (trials(project) / key / "trial.json").exists()]
    again = compare(project)
    assert again.returncode == 0, again.stderr
    return project, kept, again


def test_a_stopped_grid_keeps_its_cells_and_goes_on(stopped) -> None:
    project, kept, again = stopped
    assert 1 <= len(kept) < len(KEYS)
    said = again.stderr.splitlines()
    assert f"{len(kept)} of 4 trials are finished and kept: {', '.join(kept)}" in said
    assert [line for line in said if line.startswith("compare: 100%") and line.endswith(", done")]
    assert sorted(path.name for path in trials(project).iterdir()) == sorted(KEYS)


def test_the_table_and_the_page_are_printed_and_written(stopped, tmp_path: Path) -> None:
    project, _, again = stopped
    assert newest(project / REPORTS / "result.json").parents[1].name == "result.json"
    assert f"Page    {REPORTS}/compare.html" in again.stdout
    answer = same_everywhere(project / REPORTS, "compare.html", printed=again.stdout)
    assert (answer.split, answer.seeds) == ("val", (0, 1))
    looks_right(project / REPORTS / "compare.html", tmp_path)
    assert (project / REPORTS / "summary.md").read_text().startswith("# attention: 2 arms, val split")
    assert len(again.stdout.strip().splitlines()) <= 20
    assert max(map(len, again.stdout.splitlines())) <= 160
    assert len(list((project / REPORTS / "forests").glob("*/forests/*.svg"))) == 3
    assert newest(project / REPORTS / "table.csv").read_text().startswith("arm,rule,metric,value,")


def test_each_cell_has_one_child_run(stopped) -> None:
    project, kept, _ = stopped
    found = runs(project)
    parents = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    assert [run.info.status for run in parents] == ["KILLED", "FINISHED"]
    children = {command_of(run): run for run in found if run not in parents}
    assert sorted(children) == sorted(KEYS)
    assert len(found) == 6
    owners = {name: run.data.tags["mlflow.parentRunId"] for name, run in children.items()}
    first, second = (run.info.run_id for run in parents)
    assert owners == dict.fromkeys(KEYS, second) | dict.fromkeys(kept, first)
    grpo = children["grpo.seed1"]
    assert grpo.info.status == "FINISHED"
    assert {name: grpo.data.tags[name] for name in ("task", "arm", "seed")} == {"task": "attention", "arm": "grpo", "seed": "1"}
    # What is as in conf/base is no parameter of the run; what smoke changes is.
    assert "attention.arm.algorithm.losses.policy.kind" not in grpo.data.params
    assert grpo.data.params["attention.training.epochs"] == "2"
    written = json.loads((trials(project) / "grpo.seed1" / "trial.json").read_text())
    assert grpo.data.metrics["test/brier"] == written["metrics"]["brier"]
    assert {"reward/mean", "val/reward/mean", "policy/entropy"} <= grpo.data.metrics.keys()
    assert parents[1].data.metrics["difference/grpo/auroc"] == result(project)["differences"]["grpo"]["auroc"]["value"]


def test_the_result_is_that_of_an_uninterrupted_run(stopped) -> None:
    """The kept trial and the first after it are trained again, now in one process; what is left of the others stays."""
    project, kept, _ = stopped
    before, predicted = result(project), {key: (trials(project) / key / "predictions.csv").read_bytes() for key in KEYS}
    again = KEYS[: len(kept) + 1]
    for key in again:
        shutil.rmtree(trials(project) / key)
    unbroken = compare(project)
    assert unbroken.returncode == 0, unbroken.stderr
    left = KEYS[len(again) :]
    assert f"{len(left)} of 4 trials are finished and kept: {', '.join(left)}" in unbroken.stderr.splitlines()
    assert {key: (trials(project) / key / "predictions.csv").read_bytes() for key in KEYS} == predicted
    now = result(project)
    assert now.pop("run") != before.pop("run")
    assert now == before
    assert before["seeds"] == [0, 1]


def test_a_misspelt_name_ends_the_command_before_anything_is_generated(tmp_path, make_project) -> None:
    project = make_project(tmp_path / "project")
    name = "attention.compare.arms.grpo.set.algorithm.losses.kl.wieght"
    done = compare(project, "--params", f"{name}=0")
    assert done.returncode == 1
    said = f"error: {name} must be a parameter of this project, got an unknown name; did you mean weight?"
    assert done.stderr.splitlines()[-1].startswith(said)
    assert not list((project / "data/01_raw").iterdir())
