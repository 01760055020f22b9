"""`kedro run --pipelines dialogue` with a reward of the user's that misbehaves: stopped inside an arm, gone on with, finished."""

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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STAGES = ("warm_start", "supervised", "reinforce", "grpo")
FOLDER = "dialogue_smoke"
REWARD = '''"""A reward that raises, gives no number, and hangs once."""

import time
from pathlib import Path


def flaky(replies, answers, *, marker):
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return [one(reply) for reply in replies]
    time.sleep(1000)


def one(reply):
    if len(reply) % 5 == 0:
        raise KeyError(reply)
    return float("nan") if len(reply) % 5 == 1 else len(reply) / 24
'''


def write_reward(project: Path, *, rule: str) -> None:
    """Put a module of the user's beside the package, and its parameters into the environment."""
    (project / "src" / "my_rewards.py").write_text(REWARD)
    own = {"flaky": {"function": "my_rewards:flaky", "weight": 1.0, "options": {"marker": str(project / "it_hung")}}}
    rewards = {"own": own, "failure": {"rule": rule}, "pool": {"workers": 1, "timeout_seconds": 10.0, "chunk_size": 8}}
    file = project / "conf/smoke/parameters/dialogue_training.yml"
    parameters = yaml.safe_load(file.read_text())
    parameters["dialogue"]["rewards"] = rewards
    file.write_text(yaml.safe_dump(parameters))


def start(project: Path, *args: str) -> "subprocess.Popen[str]":
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "KEDRO_"))}
    command = [sys.executable, "-m", "kedro", "run", "--env", "smoke", "--pipelines", "dialogue", *args]
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, make_project):
    """A project whose run was stopped by Ctrl-C in the first arm that draws replies, and then finished."""
    project = make_project(tmp_path_factory.mktemp("talk") / "project").resolve()
    write_reward(project, rule="exclude")
    process, deadline = start(project), time.monotonic() + 400
    while max(trained_steps(project, arm) for arm in ("reinforce", "grpo")) < 2 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    seen = reward_processes(project)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=600)[1]
    stopped = {"code": process.returncode, "said": said, "seen": seen, "left": reward_processes(project)}
    stopped["steps"] = {stage: trained_steps(project, stage) for stage in STAGES}
    stopped["warm_start"] = warm_weights(project)
    process = start(project, "--params", "resume=auto")
    said = process.communicate(timeout=400)[1]
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
    assert {stage: trained_steps(project, stage) for stage in STAGES} == dict.fromkeys(STAGES, 6) | {"warm_start": 180}
    assert stopped["steps"]["warm_start"] == 180
    assert min(stopped["steps"][arm] for arm in STAGES[1:]) < 6
    assert warm_weights(project) == stopped["warm_start"]


def test_a_reward_that_raises_hangs_or_gives_no_number_is_left_out(finished) -> None:
    project, _ = finished
    assert (project / "it_hung").exists()
    for arm in ("reinforce", "grpo"):
        rows = metric_rows(project, arm, "train")
        assert rows["step"].tolist() == list(range(6))
        assert bool(np.isfinite(rows["reward/mean"]).all())
        assert rows["reward/flaky/mean"].between(0.0, 1.0).all()
        assert bool((rows["policy/ratio_first"] - 1).abs().max() < 1e-4)
    assert reward_processes(project) == []


def test_arms_without_replies_have_no_reward_while_they_train(finished) -> None:
    project, _ = finished
    for stage in ("warm_start", "supervised"):
        assert not [name for name in metric_rows(project, stage, "train").dropna(axis=1) if name.startswith("reward/")]
        assert bool(np.isfinite(metric_rows(project, stage, "val")["reward/mean"]).all())
    loss = metric_rows(project, "warm_start", "train")["supervised/loss"]
    assert loss.iloc[-1] < loss.iloc[0] / 2


def test_what_was_cut_is_counted(finished) -> None:
    project, _ = finished
    report = json.loads((project / f"data/05_model_input/{FOLDER}/token_report.json").read_text())
    train = report["splits"]["train"]
    assert report["max_prompt_tokens"] == 64
    assert 0 < train["examples_with_a_cut_prompt"] <= train["examples"] < train["cut_prompt_texts"] <= train["prompt_texts"]


def test_mlflow_holds_a_child_run_of_the_warm_start_and_of_each_arm(finished) -> None:
    project, _ = finished
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("grpo_pipeline_smoke")
    runs = client.search_runs([experiment.experiment_id], filter_string="attributes.status = 'FINISHED'")
    by_name = {run.info.run_name: run for run in runs}
    assert {f"dialogue.{stage}" for stage in STAGES} <= by_name.keys()
    assert by_name["dialogue.warm_start"].data.params["dialogue.arm.training.epochs"] == "30"
    assert by_name["dialogue.grpo"].data.params["dialogue.training.epochs"] == "1"
    assert "reward/flaky/mean" in by_name["dialogue.grpo"].data.metrics


def test_under_the_rule_stop_the_run_ends_with_a_sentence(finished, kedro_run) -> None:
    project, _ = finished
    write_reward(project, rule="stop")
    done = kedro_run(project, "--pipelines", "dialogue", "--params", "dialogue.warm_start.training.epochs=1")
    assert done.returncode == 1
    assert "reward 'flaky' must score every reply under rule 'stop', got none for sample" in done.stdout + done.stderr
    assert reward_processes(project) == []


def test_each_loss_term_teaches_the_whole_reader(project: Path, kedro_run) -> None:
    """Parts of the reward that tell replies apart give the policy term a gradient, and carry none themselves."""
    file = project / "conf/smoke/parameters/dialogue_audit.yml"
    parameters = yaml.safe_load(file.read_text())
    parameters["dialogue"]["gradient_flow"] = {}  # what conf/base expects, all of it
    file.write_text(yaml.safe_dump(parameters))
    (project / "src" / "my_rewards.py").write_text("def length(replies, answers):\n    return [len(r) / 40 for r in replies]\n")
    file = project / "conf/smoke/parameters/dialogue_training.yml"
    parameters = yaml.safe_load(file.read_text())
    parameters["dialogue"].setdefault("rewards", {})["own"] = {
        "length": {"function": "my_rewards:length", "weight": 1.0, "options": {}}
    }
    file.write_text(yaml.safe_dump(parameters))
    done = kedro_run(project, "--pipelines", "dialogue_gradient_flow")
    assert done.returncode == 0, done.stderr
    for arm in ("supervised", "reinforce", "grpo"):
        table = pd.read_csv(project / f"data/08_reporting/{FOLDER}/{arm}/gradient_flow.csv").set_index(["term", "component"])
        terms = {"supervised"} | ({"policy", "kl"} if arm != "supervised" else set())
        for term in terms:
            assert (table.loc[term, "grad_norm"] > 0).all(), (arm, term)
        assert (table.loc["reward", "grad_norm"] == 0).all()
