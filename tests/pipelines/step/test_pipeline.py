import numpy as np
import pytest
import torch
from tiny_attention import algorithm_params, differing, make_data, make_state, make_task, training_params, weights

from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.kl import categorical_kl
from grpo_pipeline.core.policy_gradient.losses import policy_loss, value_loss
from grpo_pipeline.core.rng import step_generator
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.core.training.optim import apply_update
from grpo_pipeline.pipelines.step.pipeline import create_collect_pipeline, create_pipeline, create_update_pipeline
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.task import AttentionTask

STEPS = 3
ROWS = [np.array([0, 3, 5, 6]), np.array([1, 2, 4, 7]), np.array([7, 1, 0, 2])]


def folded(task: AttentionTask, data: AttentionData, algorithm: AlgorithmParams, training: TrainingParams) -> AttentionModel:
    state = make_state(task, data, algorithm, training)
    runner = StepRunner(task, algorithm, training)
    for step in range(STEPS):
        state, _ = runner(state, task.make_batch(data, ROWS[step]))
    assert state.step == STEPS
    return state.policy


def looped(task: AttentionTask, data: AttentionData, algorithm: AlgorithmParams, training: TrainingParams) -> AttentionModel:
    """The same training as one plain loop over the functions of core, without a node."""
    state = make_state(task, data, algorithm, training)
    policy, group, total_steps = state.policy, training.group_size, state.total_steps
    for step in range(STEPS):
        batch = task.make_batch(data, ROWS[step])
        context, grouped = task.encode(policy, batch), task.replicate(batch, group)
        temperature = value_at(training.temperature, step, total_steps)
        rollouts = task.sample(
            policy, context, group, temperature=temperature, proposal=algorithm.proposal, generator=step_generator(0, step)
        )
        outcomes = task.decode(policy, context, rollouts, grouped)
        parts, rates = task.reward(grouped, rollouts, outcomes)
        reward = sum(rates[name] * parts[name].double() for name in parts)
        advantages = compute_advantages(reward, method=algorithm.advantage.method, std=algorithm.advantage.std).values.float()
        for update_epoch in range(algorithm.update_epochs):
            loss = torch.zeros(())
            if update_epoch == 0:
                loss = algorithm.supervised_weight.start * task.supervised_loss(policy, context, grouped, outcomes)
            if algorithm.name != "supervised":
                seen = context if update_epoch == 0 else task.detach(context)
                scores = task.score(policy, seen, rollouts, temperature=temperature)
                policy_term = policy_loss(
                    scores.logprobs, rollouts.logprobs, advantages, rollouts.is_valid, algorithm=algorithm.name,
                    clip_low=algorithm.policy_loss.clip_low, clip_high=algorithm.policy_loss.clip_high,
                    ratio_level=algorithm.policy_loss.ratio_level, reduction=algorithm.policy_loss.reduction,
                )  # fmt: skip
                loss = loss + value_at(algorithm.policy_weight, step, total_steps) * policy_term
                loss = loss + value_at(algorithm.entropy_weight, step, total_steps) * -scores.entropy.mean()
                loss = loss + algorithm.value_weight.start * value_loss(scores.values, reward.mean(1).float())
                if state.reference is not None:
                    log_q = task.score_reference(state.reference, grouped, rollouts, temperature=temperature).log_probs_full
                    kl = categorical_kl(scores.log_probs_full, log_q, batch.cells).mean()
                    loss = loss + algorithm.kl_weight.start * kl
            scale = value_at(training.optimizer.learning_rate_schedule, step, total_steps)
            clip = {"max_grad_norm": training.optimizer.max_grad_norm, "clip": training.optimizer.clip}
            state, _ = apply_update(state, loss, **clip, learning_rate_scale=scale)
    return policy


@pytest.mark.parametrize(
    "algorithm",
    [
        algorithm_params("supervised"),
        algorithm_params("grpo"),
        algorithm_params("grpo", kl_weight=0.0, update_epochs=3),
        algorithm_params("grpo", name="reinforce", update_epochs=1),
    ],
    ids=["supervised", "grpo", "grpo_without_kl", "reinforce"],
)
@pytest.mark.parametrize("clip", ["per_group", "joint"])
def test_fold_gives_the_weights_of_a_plain_loop(algorithm: AlgorithmParams, clip: str):
    task, data = make_task(reward={"heatmap_weight": 0.5}), make_data()
    training = training_params(optimizer={"clip": clip}, gradient_report_every_steps=2)
    a, b = (weights(train(task, data, algorithm, training)) for train in (folded, looped))
    assert differing(a, b) == []
    assert len(differing(a, weights(task.build_policy(0)))) > 10


def test_only_the_declared_values_come_in_and_go_out():
    body = create_pipeline()
    assert body.inputs() == {"task", "state", "batch", "params:algorithm", "params:training"}
    assert body.outputs() == {"next_state", "step_metrics"}
    assert create_collect_pipeline().inputs() == {"task", "state", "batch", "replayed", "params:algorithm", "params:training"}
    assert create_collect_pipeline().outputs() == {"experience"}
    assert create_update_pipeline().inputs() == {
        "task", "state", "experience", "update_epoch", "params:algorithm", "params:training",
    }  # fmt: skip


def test_the_order_of_the_nodes_is_that_of_the_algorithm():
    names = [node.name for node in create_pipeline().nodes]
    order = ["encode_batch", "sample_rollouts", "decode_rollouts", "compute_rewards", "compute_advantages", "collect_experience",
             "policy_loss", "hybrid_loss", "apply_update"]  # fmt: skip
    assert [name for name in names if name in order] == order
