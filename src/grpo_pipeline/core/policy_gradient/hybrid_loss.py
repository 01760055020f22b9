"""Weigh and add the terms of hybrid learning, and stop at a term that is not finite."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class NonFiniteLossError(ArithmeticError):
    """A term of the loss is NaN or infinite; the weights have not been touched."""


def hybrid_loss(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """Return the weighted sum of the terms; a term of weight 0 leaves the graph altogether.

        L = sum over names of weights[name] * terms[name]

    Each term brings its own denominator, so that none dilutes another. The sign is in the weight: entropy is a term
    with a negative weight.

    Raises:
        ValueError: if a term has no weight, a non-zero weight has no term, or every weight is 0.
    """
    odd = sorted(set(terms) - set(weights)) + sorted(
        name for name, w in weights.items() if w != 0 and name not in terms
    )
    if odd:
        raise ValueError(
            f"loss terms and their weights must match by name, got only one of the two for {odd}; add the other"
        )
    weighted = [weights[name] * term for name, term in terms.items() if weights[name] != 0]
    if not weighted:
        raise ValueError(
            f"at least one loss weight must differ from 0, got {dict(weights)}; nothing would be learned"
        )
    return sum(weighted[1:], start=weighted[0])


def check_finite(terms: Mapping[str, Tensor], *, step: int, task: str) -> None:
    """Stop at the first loss term that is NaN or infinite, before any weight is touched.

    Raises:
        NonFiniteLossError: naming the step, the task and the term.
    """
    # One transfer from the device for all of them.
    values = (
        torch.stack([term.detach().double() for term in terms.values()]).tolist() if terms else []
    )
    for name, value in zip(terms, values, strict=True):
        if not math.isfinite(value):
            raise NonFiniteLossError(
                f"loss term '{name}' of task '{task}' must be finite, got {value} at step {step}; "
                "the weights are unchanged: look at the inputs of this term, or lower the learning rate, and resume"
            )
