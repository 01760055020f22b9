import pytest
import torch
from tiny_attention import shake

from grpo_pipeline.tasks.attention.model.policy_head import StopHead


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


def test_an_untrained_head_stops_seldom_and_everywhere_alike():
    odds = make_head(trained=False)(*make_inputs())
    assert torch.equal(odds, torch.full((3, 2), -2.0))
    # 1 / (1 + e^2) = 0.119: of k = 3 points 1 + 0.88 + 0.78 = 2.66 are kept on average
    assert odds.sigmoid()[0, 0].item() == pytest.approx(0.1192, abs=1e-4)


def test_depends_on_image_and_number_of_points():
    odds = make_head(trained=True)(*make_inputs()).detach()
    assert float(odds.std(0).min()) > 1e-2
    assert float((odds[:, 0] - odds[:, 1]).abs().min()) > 1e-2


def test_reads_nothing_outside_the_region():
    head, (features, texture, cells) = make_head(trained=True), make_inputs()
    outside = ~cells.reshape(3, 1, 4, 4)
    changed = head(torch.where(outside, 99.0, features), torch.where(outside, -99.0, texture), cells)
    assert torch.equal(changed, head(features, texture, cells))
    assert not torch.allclose(head(torch.where(outside, features, features + 1), texture, cells), changed, atol=1e-3)
