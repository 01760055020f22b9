"""`kedro run --pipelines dialogue` with a reward of the user's that misbehaves: stopped inside an arm, gone on with, finished."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from flaky_reward import stop_and_finish, warm_weights, write_reward
from kedro_processes import finished_runs, metric_rows, reward_processes, trained_steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STAGES = ("warm_start", "supervised", "reinforce", "grpo")
TASK, FOLDER = "dialogue", "dialogue_smoke"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, make_project):
    """A project whose run was stopped by Ctrl-C in the first arm that draws replies, and then finished."""
    project = make_project(tmp_path_factory.mktemp("talk") / "project").resolve()
    write_reward(project, TASK, rule="exclude")
    return project, stop_and_finish(project, TASK, stages=STAGES, within=("reinforce", "grpo"))


def test_ctrl_c_ends_the_run_and_the_processes_of_the_rewards(finished) -> None:
    _, stopped = finished
    assert stopped.code == 130
    assert re.search(r"Stopped by Ctrl-C. `kedro run --env smoke .*resume=auto` goes on from the last checkpoint.", stopped.said)
    assert stopped.seen
    assert stopped.left == []


def test_a_stage_that_was_done_is_not_trained_again(finished) -> None:
    project, stopped = finished
    assert {stage: trained_steps(project, TASK, stage) for stage in STAGES} == dict.fromkeys(STAGES, 6) | {"warm_start": 180}
    assert stopped.steps["warm_start"] == 180
    assert min(stopped.steps[arm] for arm in STAGES[1:]) < 6
    assert warm_weights(project, TASK) == stopped.warm_start


def test_a_reward_that_raises_hangs_or_gives_no_number_is_left_out(finished) -> None:
    project, _ = finished
    assert (project / "it_hung").exists()
    for arm in ("reinforce", "grpo"):
        rows = metric_rows(project, TASK, arm, "train")
        assert rows["step"].tolist() == list(range(6))
        assert bool(np.isfinite(rows["reward/mean"]).all())
        assert rows["reward/flaky/mean"].between(0.0, 1.0).all()
        assert bool((rows["policy/ratio_first"] - 1).abs().max() < 1e-4)
    assert reward_processes(project) == []


def test_arms_without_replies_have_no_reward_while_they_train(finished) -> None:
    project, _ = finished
    for stage in ("warm_start", "supervised"):
        assert not [name for name in metric_rows(project, TASK, stage, "train").dropna(axis=1) if name.startswith("reward/")]
        assert bool(np.isfinite(metric_rows(project, TASK, stage, "val")["reward/mean"]).all())
    loss = metric_rows(project, TASK, "warm_start", "train")["supervised/loss"]
    assert loss.iloc[-1] < loss.iloc[0] / 2


def test_what_was_cut_is_counted(finished) -> None:
    project, _ = finished
    report = json.loads((project / f"data/05_model_input/{FOLDER}/token_report.json").read_text())
    train = report["splits"]["train"]
    assert report["max_prompt_tokens"] == 64
    assert 0 < train["examples_with_a_cut_prompt"] <= train["examples"] < train["cut_prompt_texts"] <= train["prompt_texts"]


def test_mlflow_holds_a_child_run_of_the_warm_start_and_of_each_arm(finished) -> None:
    by_name = finished_runs(finished[0])
    assert {f"dialogue.{stage}" for stage in STAGES} <= by_name.keys()
    assert by_name["dialogue.warm_start"].data.params["dialogue.arm.training.epochs"] == "30"
    assert by_name["dialogue.grpo"].data.params["dialogue.training.epochs"] == "1"
    assert "reward/flaky/mean" in by_name["dialogue.grpo"].data.metrics


def test_what_a_reward_left_out_is_counted_and_said(finished) -> None:
    project, _ = finished
    (file,) = (project / f"data/08_reporting/{FOLDER}/comparison.json").rglob("comparison.json")
    comparison = json.loads(file.read_text())
    page = (project / f"data/08_reporting/{FOLDER}/report.html").read_text()
    for arm in ("reinforce", "grpo"):
        places = comparison["unscored"][arm]["flaky"]
        assert all(0 < places[where]["share"] < 1 and places[where]["count"] >= 1 for where in ("test", "training"))
        assert f"{arm}: the reward flaky gave no value for {places['test']['count']:.0f} samples" in page


def test_a_reward_that_changes_its_mind_ends_the_run_before_anything_is_trained(project: Path, kedro_run) -> None:
    write_reward(project, TASK, rule="exclude")
    noise = "import random\n\ndef flaky(subjects, references, *, marker):\n    return [random.random() for _ in subjects]\n"
    (project / "src" / "my_rewards.py").write_text(noise)
    done = kedro_run(project, "--pipelines", "dialogue")
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "error: the reward function 'my_rewards:flaky' must give one value for one input, got 0." in said
    assert "Traceback" not in said
    assert not (project / f"data/06_models/{FOLDER}/warm_start/checkpoint").exists()


def test_under_the_rule_stop_the_run_ends_with_a_sentence(finished, kedro_run) -> None:
    project, _ = finished
    write_reward(project, TASK, rule="stop")
    done = kedro_run(project, "--pipelines", "dialogue", "--params", "dialogue.warm_start.training.epochs=1")
    assert done.returncode == 1
    message = "error: reward 'flaky' must score every reply under rule 'stop', got no value from my_rewards:flaky on the reply"
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
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
