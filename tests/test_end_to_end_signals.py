"""A training that is stopped by Ctrl-C, then by SIGTERM, and gone on with each time."""

import signal
import time
from pathlib import Path

import pytest
from kedro_processes import start, trained_steps
from mlflow.tracking import MlflowClient

PARAMS = "attention.training.epochs=16"
HINT = f"`kedro run --env smoke --params {PARAMS},resume=auto` goes on from the last checkpoint."


def stop_at(project: Path, params: str, *, step: int, number: signal.Signals) -> tuple[int, str]:
    """Run until the checkpoint has reached a step, send the signal, and return the exit code and what was said."""
    process, deadline = start(project, "--params", params), time.monotonic() + 240
    while trained_steps(project, "attention", "grpo") < step and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    said = process.communicate(timeout=600)[1]
    return process.returncode, said


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, make_project):
    """A project whose training was stopped twice and then finished."""
    project = make_project(tmp_path_factory.mktemp("signals") / "project")
    ends = [stop_at(project, PARAMS, step=4, number=signal.SIGINT)]
    ends.append(stop_at(project, f"{PARAMS},resume=auto", step=12, number=signal.SIGTERM))
    at_the_end = trained_steps(project, "attention", "grpo")
    process = start(project, "--params", f"{PARAMS},resume=auto")
    said = process.communicate(timeout=600)[1]
    return project, [*ends, (process.returncode, said)], at_the_end


def test_each_end_has_its_code_and_one_line(stopped) -> None:
    assert stopped[1] == [(130, f"\nStopped by Ctrl-C. {HINT}\n"), (143, f"\nStopped by SIGTERM. {HINT}\n"), (0, "")]


def test_the_checkpoint_is_kept_and_nothing_half_written(stopped) -> None:
    project, _, steps = stopped
    assert 12 <= steps < trained_steps(project, "attention", "grpo")
    assert not list((project / "data").rglob("*partial*"))


def test_mlflow_shows_two_killed_commands_and_one_arm_that_went_on(stopped) -> None:
    client = MlflowClient(f"sqlite:///{stopped[0] / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("grpo_pipeline_smoke")
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    parents = [run.info.status for run in runs if run.info.run_name == "__default__"]
    assert parents == ["KILLED", "KILLED", "FINISHED"]
    grpo = [run for run in runs if run.info.run_name == "attention.grpo"]
    assert [run.info.status for run in grpo] == ["FINISHED"]
    steps = [metric.step for metric in client.get_metric_history(grpo[0].info.run_id, "reward/mean")]
    assert steps == list(range(trained_steps(stopped[0], "attention", "grpo")))


@pytest.mark.slow
def test_the_weights_are_those_of_a_training_that_was_not_stopped(stopped) -> None:
    project = stopped[0]
    assert start(project, "--params", f"{PARAMS},resume=never").wait(240) == 0
    for arm in ("supervised", "grpo"):
        weights = sorted((project / f"data/06_models/attention_smoke/{arm}").rglob("model.safetensors"))
        assert len(weights) == 2
        assert weights[0].read_bytes() == weights[1].read_bytes()
