import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from grpo_pipeline.core.policy_gradient.uncertain_decisions import keep_uncertain
from grpo_pipeline.core.types import Advantages

F64 = torch.float64


@given(seed=st.integers(0, 2**31), share=st.sampled_from([0.05, 0.2, 0.5, 0.8]), of_decisions=st.booleans())
def test_agrees_with_a_naive_ranking_of_valid_decisions(seed, share, of_decisions):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(2, 3, 4, dtype=F64, generator=generator)
    entropies = torch.rand(2, 3, 4, dtype=F64, generator=generator)
    is_valid = torch.rand(2, 3, 4, generator=generator) < 0.7
    poisoned = entropies.masked_fill(~is_valid, 9.0)
    given = Advantages(values if of_decisions else values[..., 0], torch.zeros(2, dtype=torch.bool))
    found = keep_uncertain(given, poisoned, is_valid, share=share)
    ranked = sorted(((float(entropies[i]), i) for i in map(tuple, is_valid.nonzero().tolist())), reverse=True)
    kept = {i for _, i in ranked[: max(1, math.ceil(share * len(ranked) - 1e-9))]}
    for index in torch.cartesian_prod(*map(torch.arange, (2, 3, 4))).tolist():
        own = values[tuple(index)] if of_decisions else values[index[0], index[1], 0]
        assert float(found.values[tuple(index)]) == (float(own) if tuple(index) in kept else 0.0)
    assert found.is_tied is given.is_tied


def test_decisions_that_tie_at_the_border_are_all_kept():
    found = keep_uncertain(
        Advantages(torch.ones(1, 1), torch.tensor([False])),
        torch.tensor([[[3.0, 1.0, 2.0, 2.0, 2.0]]]),
        torch.ones(1, 1, 5, dtype=torch.bool),
        share=0.4,
    )
    assert found.values.tolist() == [[[1.0, 0.0, 1.0, 1.0, 1.0]]]


ONE = Advantages(torch.ones(1, 1), torch.tensor([False]))
VALID = torch.ones(1, 1, 2, dtype=torch.bool)
test_refuses = refuses(
    *[(lambda s=s: keep_uncertain(ONE, torch.ones(1, 1, 2), VALID, share=s), rf"within \(0, 1\), got {s}") for s in (0.0, 1.0)],
    (lambda: keep_uncertain(ONE, torch.ones(1, 1, 3), VALID, share=0.5), "entropies and is_valid must share one shape"),
)


@pytest.mark.parametrize("is_valid", [VALID & False])
def test_a_batch_without_a_decision_teaches_nothing(is_valid):
    assert not keep_uncertain(ONE, torch.ones(1, 1, 2), is_valid, share=0.5).values.any()
