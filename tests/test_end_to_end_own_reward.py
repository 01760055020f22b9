"""Texts and graphs with a reward of the user's that misbehaves: stopped by Ctrl-C inside an arm, gone on with, finished."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import yaml
from flaky_reward import Stopped, stop_and_finish, warm_weights, write_reward
from kedro_processes import finished_runs, metric_rows, newest, reward_processes, trained_steps
from told_answers import unmarked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
DRAWING = {"dialogue": ("reinforce", "grpo"), "molecules": ("grpo", "eager")}  # arms that draw samples, and are paid for them
WARM_LOSS = {"dialogue": 0.5, "molecules": 0.8}  # at the end, as a share of that at the start
LOGGED = {
    "dialogue": [
        ("warm_start", "dialogue.arm.training.epochs", "30"),
        ("grpo", "dialogue.training.epochs", None),  # as in conf/base
    ],
    "molecules": [
        ("eager", "molecules.arm.trajectory.estimator", "eager"),
        ("grpo", "molecules.trajectory.estimator", None),  # as in conf/base
    ],
}


class Finished(NamedTuple):
    project: Path
    task: str
    stopped: Stopped

    @property
    def arms(self) -> tuple[str, ...]:
        return ("supervised", *DRAWING[self.task])


@pytest.fixture(scope="module", params=list(DRAWING))
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, make_project) -> Finished:
    """A project whose run was stopped by Ctrl-C in the first arm that draws samples, and then finished."""
    task = request.param
    project = make_project(tmp_path_factory.mktemp(task) / "project").resolve()
    write_reward(project, task, failure="exclude")
    stages = ("warm_start", "supervised", *DRAWING[task])
    return Finished(project, task, stop_and_finish(project, task, stages=stages, within=DRAWING[task]))


def test_ctrl_c_ends_the_run_and_its_rewards_and_what_was_done_is_not_trained_again(finished: Finished) -> None:
    project, task, stopped = finished
    assert (stopped.code, stopped.left, bool(stopped.seen)) == (130, [], True)
    said = r"Stopped by Ctrl-C. `\S+/kedro run --env smoke .*resume=auto` goes on from the last checkpoint."
    assert re.search(said, stopped.said)
    steps = {stage: trained_steps(project, task, stage) for stage in ("warm_start", *finished.arms)}
    assert len({steps[arm] for arm in finished.arms}) == 1
    assert stopped.steps["warm_start"] == steps["warm_start"] > steps["grpo"] > min(stopped.steps[arm] for arm in finished.arms)
    assert warm_weights(project, task) == stopped.warm_start
    if task == "dialogue":
        assert steps == dict.fromkeys(finished.arms, 6) | {"warm_start": 180}


def test_a_reward_that_raises_hangs_or_gives_no_number_is_left_out_counted_and_said(finished: Finished) -> None:
    project, task, _ = finished
    assert (project / "it_hung").exists()
    for arm in DRAWING[task]:
        rows = metric_rows(project, task, arm, "train")
        assert rows["step"].tolist() == list(range(len(rows)))
        assert len(rows) == trained_steps(project, task, arm)
        assert bool(np.isfinite(rows["reward/mean"]).all())
        assert rows["reward/flaky/mean"].min() >= 0.0
        assert (rows["policy/ratio_first"] - 1).abs().max() < (1e-4 if task == "dialogue" else 1e-3)
    assert reward_processes(project) == []
    reports = project / f"data/08_reporting/{task}_smoke"
    comparison, page = (
        json.loads(newest(reports / "comparison.json").read_text()),
        unmarked((reports / "report.html").read_text()),
    )
    for arm in DRAWING[task]:
        places = comparison["unscored"][arm]["flaky"]
        assert all(0 < places[where]["share"] < 1 and places[where]["count"] >= 1 for where in ("test", "training"))
        assert f"{arm}: the reward flaky gave no value for {places['test']['count']:.0f} samples" in page


def test_stages_that_draw_nothing_have_no_reward_while_they_train(finished: Finished) -> None:
    project, task, _ = finished
    for stage in ("warm_start", "supervised"):
        assert not [name for name in metric_rows(project, task, stage, "train").dropna(axis=1) if name.startswith("reward/")]
        assert bool(np.isfinite(metric_rows(project, task, stage, "val")["reward/mean"]).all())
    loss = metric_rows(project, task, "warm_start", "train")["supervised/loss"]
    assert loss.iloc[-1] < WARM_LOSS[task] * loss.iloc[0]


def test_every_arm_is_evaluated_on_the_same_examples_from_the_same_start(finished: Finished) -> None:
    """Each has a child run with the parameters that it took."""
    project, task, _ = finished
    output, shown = project / f"data/07_model_output/{task}_smoke", {"dialogue": "reply", "molecules": "smiles"}[task]
    key = {"dialogue": "example_id", "molecules": "sample_id"}[task]
    tables = {arm: pd.read_csv(newest(output / arm / "predictions.csv"), keep_default_na=False) for arm in finished.arms}
    first = tables["supervised"]
    for table in tables.values():
        assert list(zip(table["rule"], table[key], strict=True)) == list(zip(first["rule"], first[key], strict=True))
        # The start is the same model, and draws with the same noise.
        for rule in {"start", "training"} & set(first["rule"]):
            assert list(table.loc[table["rule"] == rule, shown]) == list(first.loc[first["rule"] == rule, shown])
    assert list(tables["grpo"][shown]) != list(first[shown])
    if task == "molecules":
        assert set(first["rule"]) == {"policy", "start", "training"}
        training = first[first["rule"] == "training"]
        assert (training[["is_valid", "is_known"]].astype(float) == 1).all(axis=None)
    by_name = finished_runs(project)
    assert {f"{task}.{stage}" for stage in ("warm_start", *finished.arms)} <= by_name.keys()
    logged = [by_name[f"{task}.{stage}"].data.params.get(name) for stage, name, _ in LOGGED[task]]
    assert logged == [value for _, _, value in LOGGED[task]]
    assert "reward/mean" in by_name[f"{task}.grpo"].data.metrics  # that of each part is in the file of the rows


def test_each_loss_term_teaches_the_whole_network_and_no_reward_is_a_path_to_it(finished: Finished, kedro_run) -> None:
    project, task, _ = finished
    file = project / f"conf/smoke/{task}/parameters_audit.yml"
    parameters = yaml.safe_load(file.read_text())
    parameters[task].pop("gradient_flow", None)  # what conf/base expects, all of it
    file.write_text(yaml.safe_dump(parameters))
    done = kedro_run(project, "--pipelines", f"{task}_gradient_flow", "--params", "resume=auto")
    assert done.returncode == 0, done.stderr
    for arm in finished.arms:
        table = pd.read_csv(project / f"data/08_reporting/{task}_smoke/{arm}/gradient_flow.csv").set_index(["term", "component"])
        for term in {"supervised"} | ({"policy", "kl"} if arm != "supervised" else set()):
            assert (table.loc[term, "grad_norm"] > 0).all(), (arm, term)
        assert (table.loc["reward", "grad_norm"] == 0).all()


@pytest.mark.parametrize("finished", ["dialogue"], indirect=True)
def test_what_was_cut_is_counted_and_the_rule_stop_ends_the_run_with_a_sentence(finished: Finished, kedro_run) -> None:
    project, task, _ = finished
    report = json.loads((project / f"data/05_model_input/{task}_smoke/token_report.json").read_text())
    train = report["splits"]["train"]
    assert report["max_prompt_tokens"] == 64
    assert 0 < train["examples_with_a_cut_prompt"] <= train["examples"] < train["cut_prompt_texts"] <= train["prompt_texts"]
    write_reward(project, task, failure="stop")
    done = kedro_run(project, "--pipelines", task, "--params", "dialogue.warm_start.training.epochs=1")
    assert done.returncode == 1
    message = "error: reward 'flaky' must score every reply with failure = stop, got no value from my_rewards:flaky on the reply"
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert reward_processes(project) == []


def test_a_reward_that_changes_its_mind_ends_the_run_before_anything_is_trained(project: Path, kedro_run) -> None:
    write_reward(project, "dialogue", failure="exclude")
    noise = "import random\n\ndef flaky(subjects, references, *, marker):\n    return [random.random() for _ in subjects]\n"
    (project / "src" / "my_rewards.py").write_text(noise)
    done = kedro_run(project, "--pipelines", "dialogue")
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "error: the reward function 'my_rewards:flaky' must give one value for one input, got 0." in said
    assert "Traceback" not in said
    assert not (project / "data/06_models/dialogue_smoke/warm_start/checkpoint").exists()
