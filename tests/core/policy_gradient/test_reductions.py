import math

import pytest
import torch

from grpo_pipeline.core.policy_gradient.algorithms import REDUCTIONS
from grpo_pipeline.core.policy_gradient.losses import count_units, loss_denominator, mean_over, reduce_units

F64 = torch.float64
# Row 0: 1, 2, (masked 9); row 1: 4, (masked, masked); row 2: wholly masked.
X = torch.tensor([[[1.0, 2.0, 9.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]]], dtype=F64)
VALID = torch.tensor([[[True, True, False], [True, False, False], [False, False, False]]])


@pytest.mark.parametrize(
    ("reduction", "options", "want"),
    [
        ("per_sequence", {}, (1.5 + 4 + 0) / 3),
        ("per_decision", {}, (1 + 2 + 4) / 3),
        ("constant", {}, (1 + 2 + 4) / (3 * 3)),
        ("constant", {"max_decisions": 5}, (1 + 2 + 4) / (3 * 5)),
        ("per_decision_local", {}, (1 + 2 + 4) / 3),
        ("per_sequence", {"denominator": 10.0}, (1.5 + 4) / 10),
        ("per_decision", {"denominator": torch.tensor(10, dtype=F64)}, 7 / 10),
        ("constant", {"denominator": 10}, 7 / 10),
        # The local mean stays local: its denominator counts micro-batches.
        ("per_decision_local", {"denominator": 4.0}, 7 / 3 / 4),
    ],
)
def test_golden_reductions(reduction, options, want):
    assert float(reduce_units(X, VALID, reduction=reduction, **options)) == pytest.approx(want, abs=1e-15)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nothing_valid_is_exactly_zero_and_a_float32_loss_stays_float32(reduction):
    x = torch.full((1, 2, 3), math.nan, dtype=F64, requires_grad=True)
    loss = reduce_units(x, torch.zeros(1, 2, 3, dtype=torch.bool), reduction=reduction)
    loss.backward()
    assert float(loss.detach()) == torch.count_nonzero(x.grad) == 0
    for denominator in (None, torch.tensor(7, dtype=F64), 7.0):
        assert reduce_units(X.float(), VALID, reduction=reduction, denominator=denominator).dtype == torch.float32


def test_counts_add_up_over_micro_batches_also_where_one_is_wholly_masked():
    masks = torch.cat([VALID, VALID & False, ~VALID])
    wanted = {"per_sequence": [3, 3, 3], "per_decision": [3, 0, 6], "constant": [24, 24, 24], "per_decision_local": [1, 1, 1]}
    assert {name: [float(count_units(mask[None], name, 8)) for mask in masks] for name in REDUCTIONS} == wanted
    for name in set(REDUCTIONS) - {"per_decision_local"}:
        assert sum(wanted[name]) == float(count_units(masks, name, 8))
    assert float(loss_denominator(VALID & False, "per_decision")) == 1.0


def test_mean_over():
    x = torch.tensor([1.0, 2.0, 6.0])
    given = mean_over(x, denominator=torch.tensor(18.0, dtype=F64))
    assert (float(mean_over(x)), float(given), given.dtype) == (3.0, 0.5, torch.float32)
    assert float(mean_over(torch.zeros(0))) == 0.0
