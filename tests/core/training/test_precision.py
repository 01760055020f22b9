from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from grpo_pipeline.core.training.execution import at_least_float32, exact_region, network_precision
from grpo_pipeline.core.training.state import TrainState


def state(precision: str) -> TrainState:
    return cast(TrainState, SimpleNamespace(precision=precision, policy=nn.Linear(2, 2)))


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_products_compute_in_the_precision_and_weights_stay_float32(precision: str, dtype: torch.dtype) -> None:
    at = state(precision)
    with network_precision(at):
        product = at.policy(torch.ones(1, 2))
        with exact_region(product):
            exact = at.policy(torch.ones(1, 2))
    assert product.dtype == dtype
    assert exact.dtype == at.policy.weight.dtype == torch.float32
    assert at.policy(torch.ones(1, 2)).dtype == torch.float32


def test_an_update_between_two_calls_is_seen() -> None:
    """Within one context, as in a naive loop: a cast of the weight that was kept would give the old product."""
    at = state("bf16")
    x = torch.ones(1, 2)
    with network_precision(at):
        before = at.policy(x).detach().clone()
        with torch.no_grad():
            at.policy.weight.add_(1.0)
        after = at.policy(x).detach()
    assert float((after - before).min()) > 1.5


def test_a_call_without_a_graph_does_not_take_the_graph_from_the_next() -> None:
    at = state("bf16")
    with network_precision(at):
        with torch.no_grad():
            at.policy(torch.ones(1, 2))
        assert at.policy(torch.ones(1, 2)).sum().requires_grad
        at.policy(torch.ones(1, 2)).sum().backward()
    assert at.policy.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("given", "found"), [(torch.bfloat16, torch.float32), (torch.float16, torch.float32),
                                              (torch.float32, torch.float32), (torch.float64, torch.float64)])  # fmt: skip
def test_nothing_is_narrowed(given: torch.dtype, found: torch.dtype) -> None:
    assert at_least_float32(torch.ones(1, dtype=given)).dtype == found


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision must be float32 or bf16, got 'fp8'; correct the parameter"):
        network_precision(state(cast(Any, "fp8")))


@pytest.mark.parametrize("allowed", [True, False])
def test_an_exact_region_allows_no_tf32_and_leaves_the_setting_as_it_was(allowed: bool) -> None:
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = allowed
        with exact_region(torch.ones(1)):
            assert [backend.allow_tf32 for backend in backends] == [False, False]
        assert [backend.allow_tf32 for backend in backends] == [allowed, allowed]
    finally:
        for backend, was_allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = was_allowed
