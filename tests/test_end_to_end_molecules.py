"""`kedro run --pipelines molecules` with a reward of the user that misbehaves: stopped inside an arm, gone on with, finished."""

import re

import numpy as np
import pandas as pd
import pytest
from flaky_reward import stop_and_finish, warm_weights, write_reward
from kedro_processes import finished_runs, metric_rows, newest, reward_processes, trained_steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ARMS = ("supervised", "grpo", "eager")
STAGES = ("warm_start", *ARMS)
TASK, FOLDER = "molecules", "molecules_smoke"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, make_project):
    """A project whose run was stopped by Ctrl-C in the first arm that draws graphs, and then finished."""
    project = make_project(tmp_path_factory.mktemp("graphs") / "project").resolve()
    write_reward(project, TASK, rule="exclude")
    return project, stop_and_finish(project, TASK, stages=STAGES, within=("grpo", "eager"))


def test_ctrl_c_ends_the_run_and_the_processes_of_the_rewards(finished) -> None:
    _, stopped = finished
    assert stopped.code == 130
    assert re.search(r"Stopped by Ctrl-C. `kedro run --env smoke .*resume=auto` goes on from the last checkpoint.", stopped.said)
    assert stopped.seen
    assert stopped.left == []


def test_a_stage_that_was_done_is_not_trained_again(finished) -> None:
    project, stopped = finished
    steps = {stage: trained_steps(project, TASK, stage) for stage in STAGES}
    assert len({steps[arm] for arm in ARMS}) == 1
    assert stopped.steps["warm_start"] == steps["warm_start"] > steps["grpo"]
    assert min(stopped.steps[arm] for arm in ARMS) < steps["grpo"]
    assert warm_weights(project, TASK) == stopped.warm_start


def test_a_reward_that_raises_hangs_or_gives_no_number_is_left_out(finished) -> None:
    project, _ = finished
    assert (project / "it_hung").exists()
    for arm in ("grpo", "eager"):
        rows = metric_rows(project, TASK, arm, "train")
        assert rows["step"].tolist() == list(range(len(rows)))
        assert bool(np.isfinite(rows["reward/mean"]).all())
        assert (rows["policy/ratio_first"] - 1).abs().max() < 1e-3
    assert reward_processes(project) == []


def test_arms_without_samples_have_no_reward_while_they_train(finished) -> None:
    project, _ = finished
    for stage in ("warm_start", "supervised"):
        assert not [name for name in metric_rows(project, TASK, stage, "train").dropna(axis=1) if name.startswith("reward/")]
        assert bool(np.isfinite(metric_rows(project, TASK, stage, "val")["reward/mean"]).all())
    loss = metric_rows(project, TASK, "warm_start", "train")["supervised/loss"]
    assert loss.iloc[-1] < 0.8 * loss.iloc[0]


def test_every_arm_is_evaluated_on_the_same_graphs(finished) -> None:
    project, _ = finished
    output = project / "data/07_model_output" / FOLDER
    tables = {arm: pd.read_csv(newest(output / arm / "predictions.csv"), keep_default_na=False) for arm in ARMS}
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
    by_name = finished_runs(finished[0])
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
