"""A training that is stopped by Ctrl-C, by SIGTERM and by SIGKILL, in both arms, and gone on with each time."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from forked_kedro import KEDRO
from kedro_processes import start, trained_steps
from mlflow.tracking import MlflowClient

# Checkpoints and reports of the gradients fall on other steps; held-out cores are scored as usual.
PARAMS = ",".join(
    f"attention.training.{name}" for name in ("epochs=9", "checkpoint_every_steps=3", "gradient_report_every_steps=5")
)
TRAINING = "attention_data,attention_train"
HINT = f"`{KEDRO} run --env smoke --pipelines {TRAINING} --params {PARAMS},resume=auto` goes on from the last checkpoint."
ARMS = ("supervised", "grpo")  # in the order in which they are trained
TIMES = {"step_seconds", "samples_per_second", "peak_memory_mb"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def stop_at(project: Path, params: str, *, arm: str, step: int, number: signal.Signals) -> tuple[int, str]:
    """Run until the arm's checkpoint has reached a step, send the signal, and return the exit code and what was said."""
    process, deadline = start(project, "--pipelines", TRAINING, "--params", params), time.monotonic() + 240
    while trained_steps(project, "attention", arm) < step and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    said = process.communicate(timeout=600)[1]
    return process.returncode, said


def results(project: Path) -> dict[str, Any]:
    """Return what training leaves behind: weights and optimiser as bytes, metric rows without the clock's."""
    found: dict[str, Any] = {}
    for arm in ARMS:
        folder = project / f"data/06_models/attention_smoke/{arm}/checkpoint"
        found |= {f"{arm}/{path.name}": path.read_bytes() for path in folder.glob("*.safetensors")}
        lines = (project / f"data/07_model_output/attention_smoke/{arm}/metric_rows.jsonl").read_text().splitlines()
        found[f"{arm}/rows"] = [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]
    return found


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, make_project):
    """A project whose training was stopped three times and then finished; the last kill finds the first arm finished."""
    project = make_project(tmp_path_factory.mktemp("signals") / "project")
    again = f"{PARAMS},resume=auto"
    ends = [
        stop_at(project, PARAMS, arm="supervised", step=3, number=signal.SIGINT),
        stop_at(project, again, arm="supervised", step=9, number=signal.SIGTERM),
        stop_at(project, again, arm="grpo", step=6, number=signal.SIGKILL),
    ]
    at_the_end = {arm: trained_steps(project, "attention", arm) for arm in ARMS}
    process = start(project, "--pipelines", TRAINING, "--params", again)
    said = process.communicate(timeout=600)[1]
    return project, [*ends, (process.returncode, said)], at_the_end


def test_each_end_has_its_code_and_one_line(stopped) -> None:
    *ended, killed, last = stopped[1]
    assert ended == [(130, f"\nStopped by Ctrl-C. {HINT}\n"), (143, f"\nStopped by SIGTERM. {HINT}\n")]
    assert (killed[0], last[0]) == (-signal.SIGKILL, 0)


def test_the_checkpoint_is_kept_and_nothing_half_written(stopped) -> None:
    project, _, steps = stopped
    first, second = ARMS
    total = trained_steps(project, "attention", first)
    assert steps[first] == total
    assert 6 <= steps[second] < total == trained_steps(project, "attention", second)
    assert not list((project / "data").rglob("*partial*"))


def test_mlflow_shows_the_killed_commands_and_arms_that_went_on(stopped) -> None:
    client = MlflowClient(f"sqlite:///{stopped[0] / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("grpo_pipeline_smoke")
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    parents = [run.info.status for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert parents == ["KILLED", "KILLED", "KILLED", "FINISHED"]
    for arm in ARMS:
        (one,) = [run for run in runs if run.info.run_name == f"attention.{arm}"]
        assert one.info.status == "FINISHED"
        steps = sorted(metric.step for metric in client.get_metric_history(one.info.run_id, "supervised/loss"))
        assert steps == list(range(trained_steps(stopped[0], "attention", arm)))


def test_the_end_is_that_of_a_training_that_was_not_stopped(stopped) -> None:
    project = stopped[0]
    got = results(project)
    assert start(project, "--pipelines", TRAINING, "--params", f"{PARAMS},resume=never").wait(240) == 0
    expected = results(project)
    # Policy, best policy, optimiser and frames of both arms, and two tables of rows; grpo's reference never moves.
    assert len(expected) == 10
    assert got.keys() == expected.keys()
    assert [name for name in expected if got[name] != expected[name]] == []
