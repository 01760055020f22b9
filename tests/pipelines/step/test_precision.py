"""A step in bfloat16: the ratio is exactly 1, losses and log-probabilities are float32, and the numbers stay near float32's."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from loss_terms import mixed_losses
from tiny_attention import algorithm_params, gather, make_batch, make_data, make_state, make_task, shake, training_params
from torch import Tensor

from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.step import sampling
from grpo_pipeline.pipelines.training import nodes
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.tasks.attention.task import AttentionTask

DATA = make_data()
TASKS = {name: make_task(class_decoder={"kind": name}) for name in ("glimpse", "global")}
PPO: dict[str, Any] = {
    "losses": {"policy": {"kind": "ppo"}, "value": {"clip": 0.2}, "kl": {"estimator": "k3"}},
    "advantage": {"baseline": "value"},
}


def moved(precision: str, *, task: AttentionTask, **changes: Any) -> TrainState:
    state = make_state(task, DATA, algorithm_params(**changes), training_params(precision=precision))
    shake(state.policy, scale=0.1)
    return state


def collected(state: TrainState, task: AttentionTask) -> Any:
    return gather(algorithm_params(), training_params(), task, state, make_batch(task))


def ratios(state: TrainState, experience: Any, task: AttentionTask) -> Tensor:
    with network_precision(state):
        scores = task.score(state.policy, experience.context, experience.rollouts, temperature=experience.temperature)
    return (scores.logprobs.detach() - experience.rollouts.logprobs).exp()


@pytest.mark.parametrize(("precision", "other"), [("float32", "bf16"), ("bf16", "float32")])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
def test_sampling_in_another_precision_than_scoring_is_noticed(task: AttentionTask, precision: str, other: str) -> None:
    """Else the ratio of every sample is exactly one at first, and losses are float32."""
    state = moved(precision, task=task)
    experience = collected(state, task)
    assert torch.equal(ratios(state, experience, task), torch.ones(4, 4, 3))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    assert experience.context.features.dtype == dtype  # the encoder did compute in it
    terms = mixed_losses(algorithm_params(), training_params(), task, state, experience, 0)[0].terms
    assert terms.keys() == {"policy", "entropy", "kl", "value", "supervised"}
    assert {name: term.dtype for name, term in terms.items()} == dict.fromkeys(terms, torch.float32)
    outcomes, rollouts, reference = experience.outcomes, experience.rollouts, experience.reference
    tensors = [outcomes.class_logits, outcomes.bag_probs, outcomes.mask_logits, rollouts.logprobs, reference.log_probs_full]
    assert {x.dtype for x in tensors} == {torch.float32}
    assert experience.rewards.total.dtype == experience.advantages.values.dtype == torch.float64
    rescored = replace(state, precision=other)  # than the samples were drawn in: that is noticed
    again = replace(experience, context=sampling.encode_batch(task, rescored, make_batch(task)))
    assert float((ratios(rescored, again, task) - 1).abs().max()) > 1e-4


@pytest.mark.parametrize("changes", [{}, PPO])
def test_a_step_in_bf16_is_near_one_in_float32(changes: dict[str, Any]) -> None:
    """The encoding of a point in a cell's centre is that of the cell, to the last bit; texture is not rounded."""
    task, found = TASKS["global"], {}
    for precision in ("float32", "bf16"):
        state, training = moved(precision, task=task, **changes), training_params(precision=precision)
        state, found[precision] = StepRunner(task, algorithm_params(**changes), training)(state, make_batch(task))
        assert {p.dtype for p in state.policy.parameters()} == {torch.float32}
        assert {x.dtype for entries in state.optimizer.state.values() for x in entries.values()} == {torch.float32}
    exact, half = found["float32"], found["bf16"]
    assert exact["policy/ratio_first"] == half["policy/ratio_first"] == 1.0
    assert half["policy/ratio_max"] > 1.0  # the second update epoch sees the first one's weights
    for name in ("supervised/loss", "value/loss", "policy/entropy", "reward/mean", "grad_norm/total"):
        # bfloat16 holds 8 bits: 0.4 % per operation, and some tens of them follow each other.
        assert half[name] == pytest.approx(exact[name], rel=0.05), name
    assert any(half[name] != exact[name] for name in ("supervised/loss", "policy/entropy"))
    sam, points, images = state.policy.sam, torch.tensor([[[0.125, 0.125], [0.875, 0.375]]]), 50 + make_batch(task).images
    place, texture = sam.encode_points(points), state.policy.texture.describe_cells(images, task.grid)
    with network_precision(state):
        assert torch.equal(sam.encode_points(points), place)
        assert sam.dense_encoding().dtype == torch.float32
        assert torch.equal(state.policy.texture.describe_cells(images, task.grid), texture)


def test_the_reference_of_a_run_is_scored_in_the_precision_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    task, seen, look_up = TASKS["glimpse"], [], AttentionTask.with_reference
    noted = lambda *args: seen.append(torch.is_autocast_enabled("cpu")) or look_up(*args)  # noqa: E731
    monkeypatch.setattr(AttentionTask, "with_reference", noted)
    for precision in ("float32", "bf16"):
        algorithm, training = algorithm_params(), training_params(precision=precision, epochs=1)
        state = make_state(task, DATA, algorithm, training)
        yielded = list(nodes.train(algorithm, training, "never", task, DATA, state, NoCheckpoint("nowhere"), None))
        assert {row["policy/ratio_first"] for rows, _ in yielded for row in rows if row["split"] == "train"} == {1.0}
    assert seen == [False, True]
