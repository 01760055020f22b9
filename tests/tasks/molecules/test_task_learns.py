"""GRPO raises the reward of a denoiser that training molecules have taught a little; with the sign turned it destroys it."""

from dataclasses import replace
from typing import Any

import pytest
import tiny_chemist as tiny

from grpo_pipeline.core.storage.weights import ModelWeights, weights_of
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.step import collect, pipeline
from grpo_pipeline.pipelines.training.loader import make_training_batch
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.nodes import build_state
from grpo_pipeline.tasks.molecules.build import start_from

SEED = 0
# The target is met by alcohols and amines, and missed by what else there is.
REWARD = {
    "weights": {"validity": 1.0, "logp": 1.0, "uniqueness": 0.0, "novelty": 0.0},
    "logp": {"low": -2.0, "high": -0.3, "width": 0.2},
    "invalid": {"rule": "penalty", "penalty": 0.0},
}
SUM = {"entry_reduction": "sum", "steps_per_update": 4}


def run(task: Any, arm: str, *, steps: int, rate: float) -> TrainState:
    """Train an arm for some steps on all training rows at once."""
    data = tiny.make_data()
    rates = {"learning_rates": dict.fromkeys(("embeddings", "layers", "heads"), rate)}
    schedule = {"learning_rate_schedule": tiny.constant(1.0)}
    training = tiny.training_params(group_size=8, optimizer=rates | schedule, gradient_report_every_steps=1000)
    changes = {} if arm == "warm_start" else {"supervised_weight": 0.0, "kl_weight": 0.0, "update_epochs": 1}
    algorithm = tiny.algorithm_params(arm, **changes)
    state = replace(build_state(algorithm, training, SEED, task, data), total_steps=steps)
    runner, rows = StepRunner(task, algorithm, training), task.rows(data, "train")
    with quiet_nodes():
        for step in range(steps):
            state, _ = runner(state, make_training_batch(task, data, rows, seed=SEED, step=step))
    return state


def reward_of(task: Any, policy: Any) -> float:
    data = tiny.make_data()
    return task.validate(policy, data, task.rows(data, "train"), seed=SEED, n_samples=32)["reward/mean"]


@pytest.fixture(scope="module")
def start() -> ModelWeights:
    return weights_of(run(tiny.make_task(rewards=REWARD), "warm_start", steps=60, rate=0.01).policy, {})


@pytest.mark.parametrize("arm", ["grpo", "eager"])
def test_each_arm_raises_the_reward_and_the_sign_error_destroys_it(
    start: ModelWeights, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    task = start_from(tiny.make_task(rewards=REWARD), start)
    own = tiny.trajectory_params(arm if arm == "eager" else None, **SUM)
    before = reward_of(task, task.build_policy(SEED))
    assert 0.3 < before < 1.6  # of 2: there is something to lose and something to win
    after = reward_of(task, run(replace(task, trajectory=own), arm, steps=15, rate=0.003).policy)
    assert after > before + 0.2

    right = collect.compute_advantages

    def turned(*args: Any) -> Any:
        advantages = right(*args)
        return replace(advantages, values=-advantages.values)

    monkeypatch.setattr(pipeline.collect, "compute_advantages", turned)
    collapsed = reward_of(task, run(replace(task, trajectory=own), arm, steps=15, rate=0.003).policy)
    assert collapsed < before - 0.2
