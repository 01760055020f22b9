from types import SimpleNamespace

import pytest
import torch
from torch import nn

from grpo_pipeline.core.training.device import choose_device
from grpo_pipeline.core.training.precision import at_least_float32, exact_region, network_precision, set_float32_products

BACKENDS = torch.backends.cuda.matmul, torch.backends.cudnn


@pytest.fixture(autouse=True)
def products():
    before = [backend.allow_tf32 for backend in BACKENDS]
    yield
    for backend, is_allowed in zip(BACKENDS, before, strict=True):
        backend.allow_tf32 = is_allowed


@pytest.mark.parametrize(
    ("wanted", "count", "found"),
    [("auto", 0, "cpu"), ("auto", 2, "cuda"), ("cpu", 2, "cpu"), ("cuda:1", 2, "cuda:1"), ("cuda", 1, "cuda"), ("cuda", 0, None),
     ("cuda:2", 2, None)],
)  # fmt: skip
def test_the_device_is_found_or_refused(wanted, count, found, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if found is not None:
        assert choose_device(wanted) == torch.device(found)
        return
    with pytest.raises(ValueError, match=f"training.device must be a device that torch finds, got {wanted} with {count} CUDA"):
        choose_device(wanted)


def test_how_float32_is_multiplied():
    def now():
        # The last raises where the older and the newer setting of torch are mixed, which torch.compile does not survive.
        return *(backend.allow_tf32 for backend in BACKENDS), torch.get_float32_matmul_precision()

    for name, wanted in [("default", now()), ("tf32", (True, True, "high")), ("ieee", (False, False, "highest"))]:
        set_float32_products(name)
        assert now() == wanted


def state(precision):
    return SimpleNamespace(precision=precision, policy=nn.Linear(2, 2))


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_products_compute_in_the_precision_and_weights_stay_float32(precision, dtype):
    at = state(precision)
    with network_precision(at):
        product = at.policy(torch.ones(1, 2))
        with exact_region(product):
            exact = at.policy(torch.ones(1, 2))
    assert product.dtype == dtype
    assert exact.dtype == at.policy.weight.dtype == at.policy(torch.ones(1, 2)).dtype == torch.float32


def test_no_cast_is_kept_from_one_call_to_the_next():
    """Of a weight that is then updated, as in a naive loop, or of a call without a graph."""
    at, x = state("bf16"), torch.ones(1, 2)
    with network_precision(at):
        with torch.no_grad():
            before = at.policy(x).clone()
            at.policy.weight.add_(1.0)
        after = at.policy(x)
        after.sum().backward()
    assert float((after - before).detach().min()) > 1.5
    assert at.policy.weight.grad.abs().sum() > 0


def test_nothing_is_narrowed_and_an_unknown_precision_is_refused():
    for given, found in {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float64: torch.float64}.items():
        assert at_least_float32(torch.ones(1, dtype=given)).dtype == found
    with pytest.raises(ValueError, match="precision must be float32 or bf16, got 'fp8'; correct the parameter"):
        network_precision(state("fp8"))


@pytest.mark.parametrize("allowed", [True, False])
def test_an_exact_region_allows_no_tf32_and_leaves_the_setting_as_it_was(allowed):
    for backend in BACKENDS:
        backend.allow_tf32 = allowed
    with exact_region(torch.ones(1)):
        assert [backend.allow_tf32 for backend in BACKENDS] == [False, False]
    assert [backend.allow_tf32 for backend in BACKENDS] == [allowed, allowed]
