import math
from itertools import product

import numpy as np
import pytest
import torch
from naive_scores import score
from refusals import refuses

from grpo_pipeline.core.policy_gradient.whitening import whiten

F64 = torch.float64
NAN = math.nan
STDS = ("sample", "population")


@pytest.mark.parametrize(("scope", "std"), list(product(["group", "batch"], STDS)))
def test_whiten_agrees_with_a_naive_loop_over_valid_entries(scope, std):
    generator = torch.Generator().manual_seed(8)
    values = torch.randn(3, 4, 5, dtype=F64, generator=generator)
    is_valid = torch.rand(3, 4, 5, generator=generator) < 0.6
    rows = values.masked_fill(~is_valid, NAN).numpy().reshape(3 if scope == "group" else 1, -1)
    want = torch.from_numpy(np.stack([score(row, std, 1e-3) for row in rows])).view_as(values).nan_to_num()
    values[~is_valid], values[0][~is_valid[0]] = -math.inf, NAN
    got = whiten(values.requires_grad_(), is_valid, scope=scope, eps=1e-3, std=std)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)
    assert not got.requires_grad
    assert whiten(values.detach().float(), is_valid, scope=scope, eps=1e-3).dtype == F64
    # Exact zeros where nothing differs.
    for row, valid in ([0.1] * 6, [True] * 6), ([0.0, 1.0, 2.0], [True, False, False]), ([0.0, 1.0], [False, False]):
        assert not whiten(torch.tensor([row]), torch.tensor([valid]), scope=scope, eps=0.0, std=std).any()


def test_only_rounding_is_silent_when_values_are_whitened():
    # Spreads of 2e-9 and of 2e-13, beside 1: the first is (d, 0, -d) / d, the second is rounding.
    x = 1.0 + torch.tensor([[1e-9, 0.0, -1e-9], [1e-13, 0.0, -1e-13]], dtype=torch.float64)
    found = whiten(x, torch.ones_like(x, dtype=torch.bool), scope="group", eps=0.0)
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, -1.0], [0.0] * 3], dtype=torch.float64), atol=1e-6, rtol=0)


ONES, SCORED = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool)


def whitened(values=ONES, is_valid=SCORED, scope="batch", eps=1e-4, **options):
    return whiten(values, is_valid, scope=scope, eps=eps, **options)


test_refuses = refuses(
    ({"scope": "row"}, "must be 'group' or 'batch', got 'row'"),
    ({"is_valid": ONES}, r"share one shape .* got torch.float32 \[2, 2\] and torch.float32 \[2, 2\]"),
    ({"is_valid": torch.ones(2, 3, dtype=torch.bool)}, r"and torch.bool \[2, 3\]"),
    ({"values": torch.ones(2), "is_valid": SCORED[0]}, r"share one shape \[P, ...\]"),
    ({"values": ONES.long()}, "got torch.int64"),
    ({"values": torch.tensor([[0.0, NAN]]), "is_valid": SCORED[:1]}, r"finite where valid, got nan at \[0, 1\]"),
    ({"eps": -1.0}, "eps must be finite and >= 0, got -1.0"),
    by=whitened,
)
