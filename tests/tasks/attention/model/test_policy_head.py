import numpy as np
import pytest
import torch
from tiny_attention import algorithm_params, make_batch, make_data, make_state, make_task, shake, training_params
from torch import Tensor

from grpo_pipeline.core.sampling.plackett_luce import log_policy
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.tasks.attention.model.policy_head import PolicyNetwork
from grpo_pipeline.tasks.attention.model.stop_head import StopHead


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 16, 4, 4, generator=generator), 2 * torch.randn(3, 5, 4, 4, generator=generator)


def test_untrained_is_exactly_uniform_over_the_region():
    torch.manual_seed(0)
    logits, values = PolicyNetwork(16, 8, 5)(*inputs())
    assert torch.equal(logits, torch.zeros(3, 16))
    assert values.shape == (3,)
    allowed = torch.arange(16)[None].expand(3, -1) < torch.tensor([[16], [5], [1]])
    probs = log_policy(logits, allowed).exp()
    expected = allowed / allowed.sum(1, keepdim=True)
    torch.testing.assert_close(probs, expected, atol=1e-7, rtol=0)


def test_cell_number_is_row_major():
    torch.manual_seed(0)
    policy, (features, texture) = PolicyNetwork(16, 8, 5), inputs()
    shake(policy)
    maps = policy.attention(policy.trunk(torch.cat([features, texture], dim=1)))[:, 0]
    torch.testing.assert_close(policy(features, texture)[0].reshape(3, 4, 4), maps, atol=1e-5, rtol=0)


def make_inputs(n: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    features, texture = torch.randn(n, 5, 4, 4, generator=generator), torch.randn(n, 3, 4, 4, generator=generator)
    return features, texture, torch.rand(n, 16, generator=generator) < 0.5


def make_head(*, trained: bool) -> StopHead:
    torch.manual_seed(0)
    head = StopHead(8, 16, 2)
    if trained:
        shake(head)
    return head


def test_a_stop_head_reads_the_image_inside_the_region_once_it_is_trained():
    odds = make_head(trained=False)(*make_inputs())
    assert torch.equal(odds, torch.full((3, 2), -2.0))
    # 1 / (1 + e^2) = 0.119: of k = 3 points 1 + 0.88 + 0.78 = 2.66 are kept on average
    assert odds.sigmoid()[0, 0].item() == pytest.approx(0.1192, abs=1e-4)
    odds = make_head(trained=True)(*make_inputs()).detach()
    assert float(odds.std(0).min()) > 1e-2
    assert float((odds[:, 0] - odds[:, 1]).abs().min()) > 1e-2
    head, (features, texture, cells) = make_head(trained=True), make_inputs()
    outside = ~cells.reshape(3, 1, 4, 4)
    changed = head(torch.where(outside, 99.0, features), torch.where(outside, -99.0, texture), cells)
    assert torch.equal(changed, head(features, texture, cells))
    assert not torch.allclose(head(torch.where(outside, features, features + 1), texture, cells), changed, atol=1e-3)


def test_the_value_is_linear_in_the_mean_of_the_map_and_teaches_no_logits():
    torch.manual_seed(0)
    policy, (features, texture) = PolicyNetwork(16, 8, 5), inputs()
    shake(policy)
    values = policy(features, texture)[1]
    trunk = policy.trunk(torch.cat([features, texture], 1)).detach()
    mean = torch.stack([trunk[:, :, i, j] for i in range(4) for j in range(4)]).mean(0)
    torch.testing.assert_close(values, (mean @ policy.value.weight.T + policy.value.bias)[:, 0], atol=1e-5, rtol=0)
    values.sum().backward()
    assert all(p.grad is None for p in policy.attention.parameters())
    assert all(float(p.grad.abs().sum()) > 0 for p in policy.trunk[0][0].parameters())


def test_an_arm_with_a_value_baseline_learns_it():
    """On one batch again and again the value head comes to explain part of the rewards' variance."""
    task, data = make_task(), make_data()
    algorithm = algorithm_params(
        losses={"policy": {"kind": "ppo"}, "value": {"weight": 1.0}, "supervised": None, "kl": None},
        advantage={"method": "mean_only", "baseline": "value"},
    )
    training = training_params(optimizer={"learning_rates": {"value_head": 0.05}})
    state, runner = make_state(task, data, algorithm, training), StepRunner(task, algorithm, training)
    explained = []
    for _ in range(8):
        state, metrics = runner(state, make_batch(task, tuple(range(8))))
        explained.append(metrics["value/explained_variance"])
    assert np.isfinite(explained).all()
    assert explained[-1] > explained[0] + 0.1
