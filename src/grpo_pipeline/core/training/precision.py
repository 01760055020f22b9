"""Choose in which precision the networks of a step compute, and what must stay in float32.

Mixed precision: the weights are float32, matrix products and convolutions run in bfloat16, and what a loss is made of (logits
of a choice, log-probabilities, entropies, values) leaves the network in float32. The rollout, the update and the reference
enter the same context: a sample that is drawn in one precision and scored in another has a ratio other than 1 before anything
was learned (test_sampling_in_another_precision_than_scoring_is_noticed).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from grpo_pipeline.core.params import Float32Products
from grpo_pipeline.core.training.state import TrainState


def network_precision(state: TrainState) -> AbstractContextManager[Any]:
    """Return the context in which the networks of this state compute; with float32 it does nothing.

    The casts of the weights are not kept from call to call within a context: one that was made without a graph, or before an
    update, would be used afterwards.

    Raises:
        ValueError: for an unknown precision.
    """
    if state.precision == "float32":
        return nullcontext()
    if state.precision != "bf16":
        raise ValueError(
            f"precision must be float32 or bf16, got {state.precision!r}; correct the parameter training.precision"
        )
    device = next(state.policy.parameters()).device.type
    return torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False)


@contextmanager
def exact_region(like: Tensor) -> Iterator[None]:
    """Compute in the types of the inputs, and in all of their bits, also within ``network_precision``; on the device of ``like``.

    Products and convolutions of float32 are not rounded to TF32 here, whatever ``training.float32_products`` says of the rest;
    that is a matter of CUDA devices alone. Gradients are computed after the region, by the settings of that moment.
    """
    backends: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    # Not fp32_precision: see set_float32_products.
    before = [backend.allow_tf32 for backend in backends]
    with torch.autocast(like.device.type, enabled=False):
        try:
            for backend in backends:
                backend.allow_tf32 = False
            yield
        finally:
            for backend, was_allowed in zip(backends, before, strict=True):
                backend.allow_tf32 = was_allowed


def at_least_float32(x: Tensor) -> Tensor:
    """Return float32 where x is of half precision, else x itself."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def has_half_weights(policy: nn.Module) -> bool:
    """Check whether a policy holds weights of half precision, as frozen ones may be."""
    return any(p.dtype in (torch.bfloat16, torch.float16) for p in policy.parameters())


def set_float32_products(wanted: Float32Products) -> None:
    """Set how exactly CUDA multiplies float32 numbers, for the whole process; ``default`` changes nothing."""
    if wanted != "default":
        # Not fp32_precision: after it torch.compile fails, which asks for the older setting.
        torch.backends.cuda.matmul.allow_tf32 = wanted == "tf32"
        torch.backends.cudnn.allow_tf32 = wanted == "tf32"
