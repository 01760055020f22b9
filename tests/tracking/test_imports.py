"""The imports of MLflow's first requests are made before any node runs, by the thread that runs the nodes."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import mlflow.pyfunc
import pytest
import requests
from kedro_processes import clean_environ, command_of
from mlflow_server import Server

from grpo_pipeline.datasets.trained_arms import TrainedArmsDataset
from grpo_pipeline.tracking.store import use_store

FAKE = """
import os, threading, time
with open(os.environ["IMPORTED_BY"], "a") as file:
    file.write(threading.current_thread().name + "\\n")
time.sleep(float(os.environ["SLOW_IPYTHON"]))
version_info = (8, 0)
def get_ipython():
    return None
"""
# What the tracking thread imports of its own until the nodes are done.
RECORDED = """
import importlib.machinery, runpy, sys, threading
from grpo_pipeline.tracking import tracker

class Recorder:
    is_on = True
    def find_spec(self, name, path=None, target=None):
        if self.is_on and threading.current_thread().name == "mlflow-writer":
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is not None and (spec.origin or "").endswith((".py", ".so")):
                print("imported:", name)
        return None

sys.meta_path.insert(0, recorder := Recorder())
finish = tracker.Tracker.finish
def ended(self, error):
    recorder.is_on = False
    finish(self, error)
tracker.Tracker.finish = ended
sys.argv = ["kedro", "run", "--env", "smoke", "--pipelines", "attention", "--params", "attention.training.epochs=1"]
runpy.run_module("kedro", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def slow_ipython(tmp_path: Path) -> dict[str, str]:
    """Variables with which an IPython is found that takes a second to import and notes who imports it."""
    (tmp_path / "fake" / "IPython").mkdir(parents=True)
    (tmp_path / "fake" / "IPython" / "__init__.py").write_text(FAKE)
    path = os.pathsep.join([str(tmp_path / "fake"), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "IMPORTED_BY": str(tmp_path / "by"), "SLOW_IPYTHON": "1"}


def test_the_tracking_thread_imports_no_ipython(tiny, tmp_path, slow_ipython, monkeypatch):
    """A figure that is made meanwhile finds an IPython without version otherwise, and the run dies."""
    for name, value in slow_ipython.items():
        monkeypatch.setenv(name, value)
    with Server(tmp_path) as server:
        done = tiny.run(uri=server.uri)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "by").read_text().splitlines() == ["MainThread"]


@pytest.fixture
def real_server(tmp_path, empty_store):
    """``mlflow server`` on a free port of this machine."""
    shutil.copy(empty_store, tmp_path / "m.db")
    with Server(tmp_path) as free:
        port = free.server_port
    store = ["--backend-store-uri", f"sqlite:///{tmp_path / 'm.db'}", "--artifacts-destination", str(tmp_path / "files")]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store]
    environ = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # it would start processes for jobs that nobody sends
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                requests.get(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except requests.ConnectionError:
                assert time.monotonic() < deadline, (tmp_path / "server.log").read_text()
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 9)  # what it holds has been read; to end in order takes seconds
        server.wait()


@pytest.mark.slow
def test_a_real_server_takes_a_whole_run(smoke_copy, real_server, slow_ipython, monkeypatch):
    """While nodes run, the tracking thread imports nothing; in the end the server has the runs, the page and the champion."""
    from mlflow.tracking import MlflowClient

    path = os.pathsep.join([slow_ipython.pop("PYTHONPATH"), str(smoke_copy / "src")])
    variables = clean_environ(MLFLOW_TRACKING_URI=real_server, PYTHONPATH=path, **slow_ipython)
    command = [sys.executable, "-c", RECORDED]
    done = subprocess.run(command, cwd=smoke_copy, env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if line.startswith("imported:")] == []
    client = MlflowClient(real_server)
    [experiment] = [found for found in client.search_experiments() if found.name == "grpo_pipeline_smoke"]
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(command_of(run) for run in runs) == ["attention", "attention.grpo", "attention.supervised"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    [parent] = [run for run in runs if command_of(run) == "attention"]
    assert "report.html" in [Path(file.path).name for file in client.list_artifacts(parent.info.run_id)]
    # What was registered there is loaded from there, by MLflow and by a prediction of ours.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", real_server)
    address = "models:/grpo_pipeline_smoke.attention@champion"
    model = mlflow.pyfunc.load_model(address)
    assert 0 <= model.predict(model.input_example)["prob"][0] <= 1
    use_store(real_server)
    fetched = TrainedArmsDataset(filepath=str(smoke_copy / "nothing")).load().load(address, parameter="p")
    champion = client.get_model_version_by_alias("grpo_pipeline_smoke.attention", "champion")
    assert fetched.config["validation"]["value"] == float(champion.tags["validation.value"])
