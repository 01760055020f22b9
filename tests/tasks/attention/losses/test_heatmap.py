import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.losses.heatmap import proportion_bce


def test_proportion_bce_is_finite_at_the_ends():
    probs = torch.tensor([0.0, 1.0], requires_grad=True)
    loss = proportion_bce(probs, torch.tensor([1.0, 0.0]))
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), torch.full((2,), -math.log(1e-4)), atol=1e-2, rtol=0)  # 1 - 1e-4 in float32
    assert torch.isfinite(probs.grad).all()


def test_proportion_bce_leaves_mixed_precision_where_cuda_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original, inside = F.binary_cross_entropy, []

    def noted(*args: Any, **options: Any) -> Tensor:
        inside.append(torch.is_autocast_enabled("cpu"))
        return original(*args, **options)

    monkeypatch.setattr(F, "binary_cross_entropy", noted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = proportion_bce(torch.tensor([0.25]), torch.tensor([0.5]))
    assert inside == [False]
    # -(log 0.25 + log 0.75) / 2
    assert float(found) == pytest.approx(-(math.log(0.25) + math.log(0.75)) / 2)
