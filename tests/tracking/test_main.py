"""Where the MLflow page is found."""

import json
import runpy
import sys

import pytest
from torch import nn

from grpo_pipeline.core.storage.weights import save_weights, weights_of
from grpo_pipeline.tasks import BUILT_IN
from grpo_pipeline.tasks.serving import serving_of
from grpo_pipeline.tracking import __main__ as command
from grpo_pipeline.tracking import store_page
from grpo_pipeline.tracking.__main__ import parse_arguments
from grpo_pipeline.tracking.experiment import HIDDEN
from grpo_pipeline.tracking.served import can_be_served, save_served
from grpo_pipeline.tracking.store_page import runs_page


@pytest.fixture
def served(monkeypatch):
    calls = []
    monkeypatch.setattr(store_page, "serve", lambda args: calls.append(args) or 0)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return calls


@pytest.mark.parametrize(("arguments", "port"), [((), "5055"), (("--port", "5066"), "5066")])
def test_a_local_store_is_served(make_tiny, served, monkeypatch, capsys, arguments, port):
    path = make_tiny().path
    (path / "conf/local/mlflow.yml").write_text("ui: {port: 5055}\n")
    monkeypatch.chdir(path / "data")
    assert command.main(arguments) == 0
    uri = f"sqlite:///{path / 'mlflow.db'}"
    expected = ["mlflow", "ui", "--backend-store-uri", uri, "--host", "127.0.0.1", "--port", port, "--workers", "1"]
    assert served == [[sys.executable, "-m", *expected]]
    page = f"http://127.0.0.1:{port}/#/experiments?workflowType=machine_learning"
    assert capsys.readouterr().out == f"{page} shows {uri}; Ctrl-C ends it\n"
    assert not (path / "mlflow.db").exists()


def test_the_page_has_verdicts_and_the_primary_metrics_of_each_task_as_columns(tiny):
    client, uri = tiny.client, f"sqlite:///{tiny.path / 'mlflow.db'}"
    assert runs_page(uri, "tiny") == "experiments?workflowType=machine_learning"  # no run yet
    experiment = client.create_experiment("tiny", artifact_location=str(tiny.path))
    for columns in ("test/auroc,difference/auroc", "test/vun,difference/vun", "test/auroc,difference/auroc"):
        client.create_run(experiment, tags={f"{HIDDEN}columns": columns})
    client.create_run(experiment)
    page = f"experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey=verdicts"
    assert runs_page(uri, "tiny") == page
    view = json.loads(client.get_experiment(experiment).tags["mlflow.sharedViewState.verdicts"])
    metrics = ["test/auroc", "difference/auroc", "test/vun", "difference/vun"]
    assert view["selectedColumns"] == ["tags.`verdict`", *(f"metrics.`{name}`" for name in metrics)]


def test_a_server_is_named_without_its_password(make_tiny, served, monkeypatch, capsys):
    path = make_tiny().path
    (path / "conf/local/mlflow.yml").write_text("server: {mlflow_tracking_uri: 'https://me:hunter2@host'}\n")
    monkeypatch.chdir(path)
    assert command.main() == 0
    assert (capsys.readouterr().out, served) == ("The runs are on https://host, experiment tiny\n", [])


def test_outside_a_project(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tracking"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(command.__file__, run_name="__main__")
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("the current folder must lie in a Kedro project")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"task": "digits"}, "must be a model of a task that answers requests, got one of digits; use it in Python"),
        ({"task": "attention"}, "must be a model with calibration, preprocessing, got one that cannot be used alone"),
        ({"task": "dialogue"}, "must be a model with language_model, prompt, replies, got one that cannot be used alone"),
        ({"task": "molecules"}, "must be a model with denoiser, noise, prompt, vocabulary, got one that cannot be used alone"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused(tmp_path, config, says):
    save_weights(tmp_path / "model", weights_of(nn.Linear(1, 1), config))
    assert not can_be_served(tmp_path / "model")
    with pytest.raises(ValueError, match=says):
        save_served(tmp_path / "model", tmp_path / "served")


@pytest.mark.parametrize("task", BUILT_IN)
def test_the_tasks_that_export_offers_are_those_whose_models_can_be_served(task):
    given = ["export", "--task", task, "--arm", "grpo", "--to", "served"]
    if serving_of(task) is not None:
        assert parse_arguments(given).task == task
        return
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(given)
