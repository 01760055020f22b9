"""Run a function on a case, and measure how far two results are apart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """A value of any shape and, where there is one, its gradient with respect to the case's inputs."""

    value: Tensor
    gradient: Tensor | None = None

    def is_finite(self) -> bool:
        """Say whether neither the value nor the gradient holds a NaN or an infinity."""
        return all(bool(part.isfinite().all()) for part in (self.value, self.gradient) if part is not None)


@dataclass(frozen=True)
class Distance:
    """The largest difference over some cases, and in how many of them the oracle has a NaN or an infinity."""

    cases: int
    value: float
    gradient: float | None
    not_finite: int


def with_gradient(function: Callable[..., Tensor], *inputs: Tensor, cotangent: Tensor | None = None) -> Outcome:
    """Call a function on leaves and differentiate the sum of its value, weighted with the cotangent."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = function(*leaves)
    gradients = torch.autograd.grad((value if cotangent is None else value * cotangent).sum(), leaves, allow_unused=True)
    filled = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)]
    return Outcome(value.detach(), torch.cat([g.flatten() for g in filled]))


def distance(ours: Sequence[Outcome], oracle: Sequence[Outcome]) -> Distance:
    """Compare case by case, in units of the case's own size.

        max |ours - oracle| / max(1, max |oracle value|, max |oracle gradient|)

    A loss is a sum of terms as large as its gradient: where a ratio is exp(20), both sides can only agree to the rounding
    of that term. A case where the oracle is not finite is counted and left out; ours must be finite there, too, and an
    infinity stands for the difference where it is not.
    """
    pairs = list(zip(ours, oracle, strict=True))
    finite = [(a, b) for a, b in pairs if b.is_finite()]
    values = [_apart(a.value, b.value, _size(b)) for a, b in finite]
    gradients = [_apart(a.gradient, b.gradient, _size(b)) for a, b in finite if b.gradient is not None]
    if not all(a.is_finite() for a in ours):
        values = [float("inf")]
    return Distance(len(pairs), max(values, default=0.0), max(gradients, default=None), len(pairs) - len(finite))


def evaluate(function: Callable[[Any], Outcome], cases: Sequence[Any]) -> list[Outcome]:
    """Return the function's outcome on every case."""
    return [function(case) for case in cases]


def _apart(a: Tensor | None, b: Tensor, size: float) -> float:
    if a is None or a.shape != b.shape:
        raise ValueError(
            f"both sides must have one shape, got {None if a is None else list(a.shape)} and {list(b.shape)}; fix one"
        )
    return float((a - b).abs().max()) / size if b.numel() else 0.0


def _size(outcome: Outcome) -> float:
    parts = [part for part in (outcome.value, outcome.gradient) if part is not None and part.numel()]
    return max(1.0, *(float(part.abs().max()) for part in parts))
