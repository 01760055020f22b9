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
def test_nothing_valid_is_exactly_zero_and_has_no_gradient(reduction):
    x = torch.full((1, 2, 3), math.nan, dtype=F64, requires_grad=True)
    loss = reduce_units(x, torch.zeros(1, 2, 3, dtype=torch.bool), reduction=reduction)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert torch.count_nonzero(x.grad) == 0


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("denominator", [None, torch.tensor(7, dtype=F64), 7.0])
def test_a_float32_loss_stays_float32(reduction, denominator):
    assert reduce_units(X.float(), VALID, reduction=reduction, denominator=denominator).dtype == torch.float32


def test_counts_add_up_over_micro_batches_also_where_one_is_wholly_masked():
    masks = torch.cat([VALID, VALID & False, ~VALID])
    counts = {name: [float(count_units(mask[None], name, 8)) for mask in masks] for name in REDUCTIONS}
    assert counts["per_sequence"] == [3, 3, 3]
    assert counts["per_decision"] == [3, 0, 6]
    assert counts["constant"] == [24, 24, 24]
    assert counts["per_decision_local"] == [1, 1, 1]
    for name in ("per_sequence", "per_decision", "constant"):
        assert sum(counts[name]) == float(count_units(masks, name, 8))
    assert float(loss_denominator(VALID & False, "per_decision")) == 1.0


def test_mean_over():
    x = torch.tensor([1.0, 2.0, 6.0])
    assert float(mean_over(x)) == 3.0
    assert float(mean_over(x, denominator=torch.tensor(18.0, dtype=F64))) == 0.5
    assert mean_over(x, denominator=torch.tensor(18.0, dtype=F64)).dtype == torch.float32
    assert float(mean_over(torch.zeros(0))) == 0.0
