import torch
from tiny_attention import shake
from torch import Tensor

from grpo_pipeline.core.sampling.plackett_luce import log_policy
from grpo_pipeline.tasks.attention.model.policy_head import PolicyNetwork


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
    policy = PolicyNetwork(16, 8, 5)
    shake(policy)
    features, texture = inputs()
    before = policy(features, texture)[0]
    maps = torch.stack(
        [policy.attention(policy.trunk(torch.cat([f, t])[None]))[0, 0] for f, t in zip(features, texture, strict=True)]
    )
    torch.testing.assert_close(before.reshape(3, 4, 4), maps, atol=1e-5, rtol=0)


def test_the_map_reads_both_inputs():
    torch.manual_seed(0)
    policy = PolicyNetwork(16, 8, 5)
    shake(policy)
    features, texture = inputs()
    before = policy(features, texture)[0]
    for changed in (policy(features.roll(1, 2), texture)[0], policy(features, texture.roll(1, 2))[0]):
        assert not torch.allclose(before, changed, atol=1e-2)
