"""On images, micro-batches give the update of the whole batch with less memory; for all options: test_every_option."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_attention import algorithm_params, make_data, make_examples, make_state, make_task, shake, training_params, weights
from torch import Tensor

from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.step.in_micro_batches import InMicroBatches
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionData
from grpo_pipeline.tasks.attention.task import AttentionTask

ROWS = np.array([0, 1, 2, 3, 5])
ALGORITHMS: dict[str, dict[str, Any]] = {
    "control": {"arm": "supervised"},
    "policy": {
        "losses": {
            "policy": {"kind": "ppo", "ratio_level": "joint"}, "value": {"weight": 0.5, "clip": 0.2}, "kl": {"weight": 0.5},
        },
        "advantage": {"baseline": "value"}, "dynamic_sampling": {"max_retries": 2},
    },
}  # fmt: skip
TASK = make_task()


def data_with_an_empty_bag() -> AttentionData:
    """Core 2 has no pixel of its bag in the region: it counts in the class loss and in no other."""
    bag = np.array(make_examples().bag)
    bag[2] = False
    return make_data(replace(make_examples(), bag=bag))


DATA = data_with_an_empty_bag()


def batch_of(rows: np.ndarray = ROWS) -> AttentionBatch:
    return TASK.make_batch(DATA, rows)


def start(arm: dict[str, Any], **training: Any) -> tuple[TrainState, Any, Any]:
    """Return a state far from its start, without clipping and with plain gradient descent: Adam divides by small gradients."""
    algorithm = algorithm_params(**arm)
    params = training_params(optimizer={"max_grad_norm": None}, **training)
    state = make_state(TASK, DATA, algorithm, params)
    shake(state.policy, scale=0.3)
    if state.reference is not None:
        shake(state.reference, seed=5, scale=0.3)
    groups = [{key: group[key] for key in ("params", "lr", "name")} for group in state.optimizer.param_groups]
    for parameter in (one for group in groups for one in group["params"]):
        parameter.grad = torch.ones_like(parameter)  # what a step that was broken off may leave
    return replace(state, optimizer=torch.optim.SGD(groups), step=1, total_steps=10), algorithm, params


def stepped(arm: dict[str, Any], micro_batch_size: int | None, **training: Any) -> tuple[dict[str, Tensor], dict, list, Any]:
    """Return weights, metrics, the gradients of each update epoch, and the experience of one step."""
    state, algorithm, params = start(arm, micro_batch_size=micro_batch_size, **training)
    gradients: list[dict[str, Tensor]] = []
    state.optimizer.register_step_pre_hook(
        lambda *_: gradients.append({n: p.grad.clone() for n, p in state.policy.named_parameters() if p.grad is not None})
    )
    done = StepRunner(TASK, algorithm, params).run(state, batch_of())
    return weights(done.state.policy), done.metrics, gradients, done.experience


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Sums of float32 in another order, and other kernels for a single image: 3e-6 of the norm of all.

    Each tensor to 1e-5 of its largest entry; a gradient that is 0 by symmetry (the bias of the attention map) is round-off of
    larger numbers: 4 ulp of the largest entry of all.
    """
    assert found.keys() == expected.keys()
    difference = {name: (found[name] - value).double() for name, value in expected.items()}
    largest = max(float(value.abs().max()) for value in expected.values())
    norms = [torch.cat([x.double().flatten() for x in each.values()]).norm() for each in (difference, expected)]
    assert float(norms[0] / norms[1]) <= 3e-6
    for name, value in expected.items():
        assert float(difference[name].abs().max()) <= max(1e-5 * float(value.abs().max()), 5e-7 * largest), name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradients_and_weights_are_those_of_the_whole_batch(name: str) -> None:
    """Five prompts by twos: the last piece is a single one."""
    changes = ALGORITHMS[name]
    (whole, metrics, gradients, experience), (micro_batches, found, pieces, again) = (
        stepped(changes, size, gradient_report_every_steps=2) for size in (None, 2)
    )
    assert torch.equal(again.rollouts.actions, experience.rollouts.actions)  # the same draws
    assert len(pieces) == len(gradients) == (1 if "arm" in changes else 2)
    for piece, gradient in zip(pieces, gradients, strict=True):
        assert_close(piece, gradient)
    assert_close(micro_batches, whole)
    assert found.keys() == metrics.keys()
    assert {"grad_norm/supervised"} < found.keys()
    timeless = [name for name in metrics if name not in ("step_seconds", "samples_per_second", "peak_memory_mb")]
    for key in timeless:
        # A cosine of two gradients, or a loss whose terms cancel, keeps fewer digits than they.
        assert found[key] == pytest.approx(metrics[key], rel=1e-4, abs=2e-6, nan_ok=True), key
    if "policy/ratio_first" in metrics:
        assert found["policy/ratio_first"] == 1.0


def calls_of(monkeypatch: pytest.MonkeyPatch, size: int | None) -> list[tuple[str, int, bool]]:
    """Return how many prompts each network call sees, and whether it may keep a graph."""
    calls, encode, decode = [], AttentionTask.encode, AttentionTask.decode

    def noted_encode(self: Any, policy: Any, batch: Any) -> Any:
        calls.append(("encode", len(batch.rows), torch.is_grad_enabled()))
        return encode(self, policy, batch)

    def noted_decode(self: Any, policy: Any, context: Any, rollouts: Any, batch: Any) -> Any:
        calls.append(("decode", len(rollouts.actions), torch.is_grad_enabled()))
        return decode(self, policy, context, rollouts, batch)

    state, algorithm, params = start({"losses": {"kl": None}}, micro_batch_size=size)
    with monkeypatch.context() as patch:
        patch.setattr(AttentionTask, "encode", noted_encode)
        patch.setattr(AttentionTask, "decode", noted_decode)
        StepRunner(TASK, algorithm, params)(state, batch_of())
    return calls


def test_network_calls_see_at_most_a_micro_batch_and_without_any_nothing_runs_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [3, 2]
    gathered = [("encode", n, True) for n in sizes] + [("decode", n, False) for n in sizes]
    assert calls_of(monkeypatch, 3) == gathered + [call for n in sizes for call in (("encode", n, True), ("decode", n, True))]
    assert calls_of(monkeypatch, None) == [("encode", 5, True), ("decode", 5, True)]


class Misremembering(AttentionTask):
    """Says of its samples that they were likelier than they are."""

    def sample(self, *args: Any, **kwargs: Any) -> Rollouts:
        drawn = super().sample(*args, **kwargs)
        return replace(drawn, logprobs=drawn.logprobs + 1)


@pytest.mark.parametrize("proposal", ["policy", "uniform"])
def test_only_samples_of_the_policy_are_made_as_likely_as_the_update_will_say(proposal: Any) -> None:
    task = InMicroBatches(Misremembering(TASK.model, TASK.rewards, TASK.supervised, TASK.image_size, TASK.device), 2)
    policy, batch = TASK.build_policy(0), batch_of()
    shake(policy, scale=0.3)
    context = task.encode(policy, batch)
    drawn = task.sample(policy, context, 3, temperature=0.7, proposal=proposal, generator=torch.Generator().manual_seed(0))
    scored = task.score(policy, context, drawn, temperature=0.7).logprobs
    uniform = -(batch.cells.sum(1)[:, None] - torch.arange(drawn.actions.shape[2])).double().log()  # without replacement
    expected = scored if proposal == "policy" else (uniform + 1).float()[:, None].expand_as(scored)
    torch.testing.assert_close(drawn.logprobs, expected, rtol=0, atol=1e-5)
