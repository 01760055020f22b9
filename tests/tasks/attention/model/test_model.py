"""Clinical prompts: the tokens, what they reach, and what they must not reach."""

import json
from dataclasses import replace

import pytest
import torch
from tiny_attention import (
    GRID,
    differing,
    make_batch,
    make_examples,
    make_task,
    model_params,
    section,
    shake,
    training_params,
    weights,
)
from torch import Tensor
from transformers.models.sam.modeling_sam import SamVisionLayer

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.tasks.attention import build
from grpo_pipeline.tasks.attention.batch import Outcomes
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.model.encoder_execution import checkpoint_layers
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.attention.task import AttentionTask


def decode(points: Tensor, bag: Tensor | None = None, **model: str) -> Outcomes:
    task = make_task(**model)
    policy = task.build_policy(0)
    shake(policy)
    batch = make_batch(task, (0, 1))
    context = task.encode(policy, batch)
    return policy.decode(context.features, context.images, points, batch.bag if bag is None else bag)


def points(n: int = 4, group: int = 3, k: int = 2) -> Tensor:
    return torch.rand(n, group, k, 2, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_bag_prob_is_the_mean_over_the_bag():
    bag = torch.zeros(2, 4 * GRID, 4 * GRID)
    bag[0, 2, 5], bag[0, 3, 7], bag[1, 0, 0] = 1.0, 0.5, 0.25
    made = decode(points(2), bag)
    heat = made.mask_logits.sigmoid()
    torch.testing.assert_close(made.bag_probs[0], (heat[0, :, 2, 5] + 0.5 * heat[0, :, 3, 7]) / 1.5, atol=1e-6, rtol=0)
    torch.testing.assert_close(made.bag_probs[1], heat[1, :, 0, 0], atol=1e-6, rtol=0)


PLAIN = make_task()


def task_with(training: TrainingParams) -> AttentionTask:
    reward, loss = RewardParams(**section("reward")), SupervisedParams(**section("supervised_loss"))
    return build.build_task(model_params(), reward, loss, make_examples(), training)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="training.device must be a device that torch finds, got cuda:7"):
        task_with(training_params(device="cuda:7"))


def encoded(task: AttentionTask) -> tuple[AttentionModel, torch.Tensor, list[torch.Tensor]]:
    """Return the policy, its features, and the gradient of their squares."""
    policy = task.build_policy(0)
    shake(policy)
    features = task.encode(policy, make_batch(PLAIN)).features
    parameters = [p for p in policy.sam.net.vision_encoder.parameters() if p.requires_grad]
    return policy, features, list(torch.autograd.grad(features.square().mean(), parameters))


def test_checkpointed_layers_run_a_second_time_and_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, original = [], SamVisionLayer.window_partition

    def counted(self: SamVisionLayer, *args: object) -> object:
        calls.append(id(self))
        return original(self, *args)

    monkeypatch.setattr(SamVisionLayer, "window_partition", counted)
    _, plain, expected = encoded(PLAIN)
    once = len(calls)
    policy, features, gradients = encoded(task_with(training_params(activation_checkpointing="encoder")))
    assert len(calls) - once == 2 * once == 2 * sum(layer.window_size > 0 for layer in policy.sam.net.vision_encoder.layers) > 0
    assert torch.equal(features, plain)
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
    assert checkpoint_layers(policy.sam.net.vision_encoder) == len(policy.sam.net.vision_encoder.layers)


def test_channels_last_moves_memory_and_no_number() -> None:
    policy, features, gradients = encoded(task_with(training_params(memory_format="channels_last")))
    plain, expected, expected_gradients = encoded(PLAIN)
    weight = policy.policy.trunk[0][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert differing(weights(plain), weights(policy)) == []
    # Sums in another order: single numbers near 0 have no relative precision, the tensor as a whole has.
    close_as_a_whole(features, expected)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        close_as_a_whole(gradient, other)


def close_as_a_whole(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert that two tensors differ by at most 1e-5 of the norm of the second."""
    assert torch.linalg.vector_norm(got - expected) <= 1e-5 * torch.linalg.vector_norm(expected)


OWN = {"reads": {"encoder": "own"}}


def test_a_policy_with_an_encoder_of_its_own_starts_alike_and_learns_in_it_alone() -> None:
    shared, own = (make_task(policy={"reads": {"encoder": name}}).build_policy(0) for name in ("shared", "own"))
    mine = {name.removeprefix("policy_encoder."): p for name, p in own.named_parameters() if name.startswith("policy_encoder.")}
    theirs = dict(own.sam.net.vision_encoder.named_parameters())
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) and mine[name] is not theirs[name] for name in mine)
    same = {name: tensor for name, tensor in own.state_dict().items() if not name.startswith("policy_encoder.")}
    assert all(torch.equal(tensor, same[name]) for name, tensor in shared.state_dict().items())

    task = make_task(policy=OWN)
    groups = task.parameter_groups(own)
    assert {id(p) for p in groups["policy_encoder"]} == {id(p) for p in mine.values() if p.requires_grad}
    shake(own.policy)
    batch = make_batch(task)
    context = task.encode(own, batch)
    logits, values = own.propose(context)
    outcomes = own.decode(context.features, context.images, points()[[0, 1, 0, 1]], batch.bag)
    losses = {"policy": logits.cells[:, 3].sum(), "value": values.sum(), "decoders": outcomes.mask_logits.sum()}
    for name, loss in losses.items():
        of_mine, of_theirs = (
            torch.autograd.grad(loss, list(encoder.values()), retain_graph=True, allow_unused=True) for encoder in (mine, theirs)
        )
        taught, left = (of_theirs, of_mine) if name == "decoders" else (of_mine, of_theirs)
        assert any(g is not None and g.abs().sum() > 0 for g in taught), name
        assert all(g is None for g in left), name
    before = own.propose(context)[0].cells
    with torch.no_grad():
        mine["patch_embed.projection.bias"].add_(0.5)
    after = task.encode(own, batch)
    assert torch.equal(after.features, context.features)
    assert not torch.equal(own.propose(after)[0].cells, before)
    detached = task.detach(context)
    assert not detached.features.requires_grad
    assert not detached.policy_features.requires_grad
    again = AttentionModel.from_description(json.loads(json.dumps(task.describe(own))))
    again.load_state_dict(own.state_dict())
    assert torch.equal(again.propose(task.encode(again, batch))[0].cells, own.propose(after)[0].cells)
    with pytest.raises(ValueError, match="must hold policy_features for a policy that reads an own encoder, got None"):
        own.propose(replace(context, policy_features=None))


@pytest.mark.parametrize("changes", [{"encoder": {"tuning": {"kind": "frozen"}}}, {"policy": {"reads": {"kind": "cell"}}}])
def test_an_encoder_that_nothing_trains_or_reads_is_not_copied(changes: dict[str, str]) -> None:
    assert make_task(policy=OWN).build_policy(0).policy_encoder is not None
    assert make_task(**{"policy": OWN} | changes).build_policy(0).policy_encoder is None
