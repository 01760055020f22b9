"""`kedro run --pipelines molecules` with a reward of the user that misbehaves: stopped inside an arm, gone on with, finished."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from mlflow.tracking import MlflowClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ARMS = ("supervised", "grpo", "eager")
STAGES = ("warm_start", *ARMS)
FOLDER = "molecules_smoke"
REWARD = '''"""A reward that raises, gives no number, and hangs once."""

import time
from pathlib import Path


def flaky(smiles, references, *, marker):
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return [one(text) for text in smiles]
    time.sleep(1000)


def one(text):
    if len(text) % 5 == 0:
        raise KeyError(text)
    return float("nan") if len(text) % 5 == 1 else len(text) / 24
'''


def write_reward(project: Path, *, rule: str) -> None:
    """Put a module of the user's beside the package, and its parameters into the environment."""
    (project / "src" / "my_rewards.py").write_text(REWARD)
    own = {"flaky": {"function": "my_rewards:flaky", "weight": 1.0, "options": {"marker": str(project / "it_hung")}}}
    rewards = {"own": own, "failure": {"rule": rule}, "pool": {"workers": 1, "timeout_seconds": 10.0, "chunk_size": 8}}
    file = project / "conf/smoke/parameters/molecules_training.yml"
    parameters = yaml.safe_load(file.read_text())
    parameters["molecules"]["rewards"] = rewards
    file.write_text(yaml.safe_dump(parameters))


def start(project: Path, *args: str) -> "subprocess.Popen[str]":
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "KEDRO_"))}
    command = [sys.executable, "-m", "kedro", "run", "--env", "smoke", "--pipelines", "molecules", *args]
    return subprocess.Popen(command, cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def trained_steps(project: Path, stage: str) -> int:
    try:
        header = project / f"data/06_models/{FOLDER}/{stage}/checkpoint/checkpoint.json"
        return int(json.loads(header.read_text())["progress"]["step"])
    except (OSError, ValueError):  # not there yet, or being replaced
        return 0


def reward_processes(project: Path) -> list[int]:
    """Return the ids of the reward processes that were started in the project."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ours = os.readlink(entry / "cwd") == str(project) and b"reward_worker" in (entry / "cmdline").read_bytes()
        except OSError:
            continue
        found += [int(entry.name)] if ours else []
    return found


def metric_rows(project: Path, stage: str, split: str) -> pd.DataFrame:
    lines = (project / f"data/07_model_output/{FOLDER}/{stage}/metric_rows.jsonl").read_text().splitlines()
    rows = pd.DataFrame([json.loads(line) for line in lines])
    return rows[rows["split"] == split]


def newest(project: Path, arm: str, name: str) -> Path:
    return sorted((project / f"data/07_model_output/{FOLDER}/{arm}/{name}").glob(f"*/{name}"))[-1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, make_project):
    """A project whose run was stopped by Ctrl-C in the first arm that draws graphs, and then finished."""
    project = make_project(tmp_path_factory.mktemp("graphs") / "project").resolve()
    write_reward(project, rule="exclude")
    process, deadline = start(project), time.monotonic() + 600
    while max(trained_steps(project, arm) for arm in ("grpo", "eager")) < 2 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    seen = reward_processes(project)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=300)[1]
    stopped = {"code": process.returncode, "said": said, "seen": seen, "left": reward_processes(project)}
    stopped["steps"] = {stage: trained_steps(project, stage) for stage in STAGES}
    stopped["warm_start"] = warm_weights(project)
    process = start(project, "--params", "resume=auto")
    said = process.communicate(timeout=600)[1]
    assert process.returncode == 0, said
    return project, stopped


def warm_weights(project: Path) -> bytes:
    return (project / f"data/06_models/{FOLDER}/warm_start/checkpoint/policy.safetensors").read_bytes()


def test_ctrl_c_ends_the_run_and_the_processes_of_the_rewards(finished) -> None:
    _, stopped = finished
    assert stopped["code"] == 130
    assert "Stopped by Ctrl-C. `kedro run --params resume=auto` goes on from the last checkpoint." in stopped["said"]
    assert stopped["seen"]
    assert stopped["left"] == []


def test_a_stage_that_was_done_is_not_trained_again(finished) -> None:
    project, stopped = finished
    steps = {stage: trained_steps(project, stage) for stage in STAGES}
    assert len({steps[arm] for arm in ARMS}) == 1
    assert stopped["steps"]["warm_start"] == steps["warm_start"] > steps["grpo"]
    assert min(stopped["steps"][arm] for arm in ARMS) < steps["grpo"]
    assert warm_weights(project) == stopped["warm_start"]


def test_a_reward_that_raises_hangs_or_gives_no_number_is_left_out(finished) -> None:
    project, _ = finished
    assert (project / "it_hung").exists()
    for arm in ("grpo", "eager"):
        rows = metric_rows(project, arm, "train")
        assert rows["step"].tolist() == list(range(len(rows)))
        assert bool(np.isfinite(rows["reward/mean"]).all())
        assert (rows["policy/ratio_first"] - 1).abs().max() < 1e-3
    assert reward_processes(project) == []


def test_arms_without_samples_have_no_reward_while_they_train(finished) -> None:
    project, _ = finished
    for stage in ("warm_start", "supervised"):
        assert not [name for name in metric_rows(project, stage, "train").dropna(axis=1) if name.startswith("reward/")]
        assert bool(np.isfinite(metric_rows(project, stage, "val")["reward/mean"]).all())
    loss = metric_rows(project, "warm_start", "train")["supervised/loss"]
    assert loss.iloc[-1] < 0.8 * loss.iloc[0]


def test_every_arm_is_evaluated_on_the_same_graphs(finished) -> None:
    project, _ = finished
    tables = {arm: pd.read_csv(newest(project, arm, "predictions.csv"), keep_default_na=False) for arm in ARMS}
    first = tables["supervised"]
    assert set(first["rule"]) == {"policy", "start", "training"}
    for table in tables.values():
        assert list(table["sample_id"]) == list(first["sample_id"])
        # The start is the same model, and draws with the same noise.
        for rule in ("start", "training"):
            assert list(table.loc[table["rule"] == rule, "smiles"]) == list(first.loc[first["rule"] == rule, "smiles"])
    assert list(tables["grpo"]["smiles"]) != list(first["smiles"])
    training = first[first["rule"] == "training"]
    assert (training["is_valid"] == 1).all()
    assert (training["is_known"].astype(float) == 1).all()


def test_mlflow_holds_a_child_run_of_the_warm_start_and_of_each_arm(finished) -> None:
    project, _ = finished
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("grpo_pipeline_smoke")
    runs = client.search_runs([experiment.experiment_id], filter_string="attributes.status = 'FINISHED'")
    by_name = {run.info.run_name: run for run in runs}
    assert {f"molecules.{stage}" for stage in STAGES} <= by_name.keys()
    assert by_name["molecules.eager"].data.params["molecules.arm.trajectory.estimator"] == "eager"
    assert by_name["molecules.grpo"].data.params["molecules.trajectory.estimator"] == "step"
    assert "reward/flaky/mean" in by_name["molecules.grpo"].data.metrics


def test_each_loss_term_teaches_the_whole_network(finished, kedro_run) -> None:
    project, _ = finished
    done = kedro_run(project, "--pipelines", "molecules_gradient_flow", "--params", "resume=auto")
    assert done.returncode == 0, done.stderr
    for arm in ARMS:
        table = pd.read_csv(project / f"data/08_reporting/{FOLDER}/{arm}/gradient_flow.csv").set_index(["term", "component"])
        for term in {"supervised"} | ({"policy", "kl"} if arm != "supervised" else set()):
            assert (table.loc[term, "grad_norm"] > 0).all(), (arm, term)
        assert (table.loc["reward", "grad_norm"] == 0).all()
