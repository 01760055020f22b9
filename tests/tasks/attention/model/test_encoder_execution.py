import copy

import pytest
import torch
from tiny_attention import differing, make_batch, make_examples, make_task, model_params, section, shake, training_params, weights
from transformers.models.sam.modeling_sam import SamVisionLayer

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.tasks.attention import build
from grpo_pipeline.tasks.attention.model.model import AttentionModel, checkpoint_layers
from grpo_pipeline.tasks.attention.params import RewardParams, SupervisedParams
from grpo_pipeline.tasks.attention.task import AttentionTask

PLAIN = make_task()


def task_with(training: TrainingParams) -> AttentionTask:
    reward, loss = RewardParams(**section("reward")), SupervisedParams(**section("supervised_loss"))
    return build.build_task(model_params(), reward, loss, make_examples(), training)


def encoded(task: AttentionTask) -> tuple[AttentionModel, torch.Tensor, list[torch.Tensor]]:
    """Return the policy, its features, and the gradient of their squares."""
    policy = task.build_policy(0)
    shake(policy)
    features = task.encode(policy, make_batch(PLAIN)).features
    parameters = [p for p in policy.sam.net.vision_encoder.parameters() if p.requires_grad]
    return policy, features, list(torch.autograd.grad(features.square().mean(), parameters))


def count_layers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    original = SamVisionLayer.window_partition

    def counted(self: SamVisionLayer, *args: object) -> object:
        calls.append(id(self))
        return original(self, *args)

    monkeypatch.setattr(SamVisionLayer, "window_partition", counted)
    return calls


@pytest.mark.parametrize(("checkpointing", "passes"), [("none", 1), ("encoder", 2)])
def test_checkpointed_layers_run_a_second_time_and_give_the_same_gradients(
    checkpointing: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_with(training_params(activation_checkpointing=checkpointing))
    calls = count_layers(monkeypatch)
    policy, features, gradients = encoded(task)
    windowed = sum(layer.window_size > 0 for layer in policy.sam.net.vision_encoder.layers)
    assert len(calls) == passes * windowed > 0
    monkeypatch.undo()
    _, plain, expected = encoded(PLAIN)
    assert torch.equal(features, plain)
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


def test_every_layer_of_the_encoder_is_checkpointed() -> None:
    policy = PLAIN.build_policy(0)
    assert checkpoint_layers(policy.sam.net.vision_encoder) == len(policy.sam.net.vision_encoder.layers)


def test_channels_last_moves_memory_and_no_number() -> None:
    policy, features, gradients = encoded(task_with(training_params(memory_format="channels_last")))
    plain, expected, expected_gradients = encoded(PLAIN)
    weight = policy.policy.trunk[0][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert differing(weights(plain), weights(policy)) == []
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-6)


def test_a_compiled_encoder_keeps_its_names_and_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler itself is not run: it takes minutes."""
    compiled = []
    monkeypatch.setattr(build, "check_compiler", lambda device: compiled.append(device.type))
    monkeypatch.setattr(
        torch, "compile", lambda function, **_: lambda *args, **kw: compiled.append("call") or function(*args, **kw)
    )
    policy, features, _ = encoded(task_with(training_params(compile="encoder")))
    assert compiled == ["cpu", "call"]
    plain, expected, _ = encoded(PLAIN)
    assert list(weights(policy)) == list(weights(plain))
    assert torch.equal(features, expected)
    assert copy.deepcopy(policy).sam.net.vision_encoder._compiled_call_impl is None  # a reference runs as it is


def test_a_device_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    with pytest.raises(ValueError, match="training.device must be a device that torch finds, got cuda:7"):
        task_with(training_params(device="cuda:7"))
