"""GRPO raises the reward of a language model that imitation taught a little; with the advantages' sign turned it collapses."""

from dataclasses import replace
from typing import Any

import pytest
import tiny_talk as tiny

from grpo_pipeline.core.storage.weights import ModelWeights, weights_of
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.step import collect, pipeline
from grpo_pipeline.pipelines.training.loader import make_training_batch
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.nodes import build_state
from grpo_pipeline.tasks.dialogue.build import start_from

READER = {"width": 32, "layers": 1, "heads": 2}
REPLIES = {"max_tokens": 8}
SEED = 0


def run(task: Any, arm: str, *, steps: int, rate: float) -> TrainState:
    """Train an arm for some steps on all training rows at once."""
    data = tiny.make_data(task)
    rates = {"learning_rates": dict.fromkeys(("embeddings", "encoder", "decoder"), rate)}
    schedule = {"learning_rate_schedule": tiny.constant(1.0)}
    training = tiny.training_params(group_size=8, optimizer=rates | schedule, gradient_report_every_steps=1000)
    algorithm = tiny.algorithm_params(arm, **({} if arm == "warm_start" else {"supervised_weight": 0.0, "kl_weight": 0.0}))
    state = replace(build_state(algorithm, training, SEED, task, data), total_steps=steps)
    runner, rows = StepRunner(task, algorithm, training), task.rows(data, "train")
    with quiet_nodes():
        for step in range(steps):
            state, _ = runner(state, make_training_batch(task, data, rows, seed=SEED, step=step))
    return state


def reward_of(task: Any, policy: Any) -> float:
    data = tiny.make_data(task)
    return task.validate(policy, data, task.rows(data, "train"), seed=SEED, n_samples=16)["reward/mean"]


@pytest.fixture(scope="module")
def start() -> ModelWeights:
    task = tiny.make_task(language_model=READER, replies=REPLIES)
    return weights_of(run(task, "warm_start", steps=60, rate=0.01).policy, {})


def test_grpo_raises_the_reward_and_the_sign_error_destroys_it(start: ModelWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    task = start_from(tiny.make_task(language_model=READER, replies=REPLIES), start)
    before = reward_of(task, task.build_policy(SEED))
    assert 0.2 < before < 2.0  # of 3: there is something to lose and something to win
    after = reward_of(task, run(task, "grpo", steps=25, rate=0.003).policy)
    assert after > before + 0.3

    right = collect.compute_advantages

    def turned(*args: Any) -> Any:
        advantages = right(*args)
        return replace(advantages, values=-advantages.values)

    monkeypatch.setattr(pipeline.collect, "compute_advantages", turned)
    collapsed = reward_of(task, run(task, "grpo", steps=25, rate=0.003).policy)
    assert collapsed < before / 4
