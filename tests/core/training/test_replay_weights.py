import math

import torch
from refusals import refuses

from grpo_pipeline.core.training.replay_weights import importance_weights


def test_weights_are_ratios_of_whole_samples_held_by_the_cap():
    inf, nan = torch.inf, torch.nan
    proximal = torch.tensor([[[-1.0, -2.0, -0.5], [-1.0, -1.0, -1.0], [-inf, 0.0, 0.0], [0.0] * 3]], requires_grad=True)
    behaviour = torch.tensor([[[-1.5, -1.0, -9.0], [-3.0, -1.0, nan], [-1.0, 0.0, nan], [-1000.0, 0.0, nan]]])
    is_valid = torch.tensor([True, True, False]).expand(1, 4, 3)
    # exp((-1 + 1.5) + (-2 + 1)) = exp(-0.5);  exp((-1 + 3) + 0) = exp(2);  no longer allowed: 0;  exp(1000) is held at exp(20)
    want = torch.tensor([[-0.5, 2.0, -inf, 20.0]], dtype=torch.float64).exp()
    for cap in (None, 5.0):
        found = importance_weights(proximal, behaviour, is_valid, cap=cap)
        torch.testing.assert_close(found, want.clamp(max=cap or inf), rtol=1e-15, atol=0)
        assert not found.requires_grad


def weigh(proximal, behaviour, *, cap=2.0):
    return importance_weights(proximal, behaviour, torch.ones_like(proximal, dtype=torch.bool), cap=cap)


X = torch.zeros(2, 2, 1)

test_refuses = refuses(
    (lambda: weigh(X, X.index_fill(0, torch.tensor(1), math.nan)), "for prompt 1, sample 0"),
    (lambda: weigh(X, X.index_fill(0, torch.tensor(1), -math.inf)), "for prompt 1, sample 0"),
    (lambda: weigh(X, X[:1]), r"share one shape \[P, G, L\], got"),
    (lambda: weigh(X[0], X[0]), r"share one shape \[P, G, L\], got"),
    (lambda: weigh(X, X, cap=0.99), "cap of importance weights must be at least 1, got 0.99"),
    (lambda: weigh(X, X, cap=math.nan), "cap of importance weights must be at least 1, got nan"),
)
