"""Reduce one number per unit to one number: what a loss is divided by, by name.

Every reduction is a sum divided by a denominator that can be counted before the first micro-batch (``denominators.py``),
so that any split into micro-batches gives one gradient. ``per_decision_local`` is the exception, by definition.
"""

import torch
from torch import Tensor

from grpo_pipeline.core.policy_gradient.names import REDUCTIONS, Reduction, check_name


def reduce_units(
    x: Tensor,
    is_valid: Tensor,
    *,
    reduction: Reduction,
    denominator: Tensor | float | None = None,
    max_decisions: int | None = None,
) -> Tensor:
    """Reduce units to a scalar.

        per_sequence         sum over rows of the row's mean over valid units / denominator
        per_sequence_sum     sum over valid units / denominator
        per_decision         sum over valid units / denominator
        constant             sum over valid units / denominator
        per_decision_local   mean over the valid units of this call / denominator

    Args:
        x: [P, G, U], or [P, G, 1] where one value stands for every unit of the row.
        is_valid: bool [P, G, U]; other units contribute exactly 0 and get no gradient.
        reduction: see ``count_units`` for what each denominator counts.
        denominator: that of the whole optimiser step; None = ``loss_denominator`` of this call.
        max_decisions: L_max of ``constant``.
    """
    kept = x.expand_as(is_valid).masked_fill(~is_valid, 0.0)  # [P, G, U]
    if reduction == "per_sequence":
        kept = kept / is_valid.sum(dim=-1, keepdim=True).clamp(min=1)  # [P, G, U] / [P, G, 1]
    if reduction == "per_decision_local":
        kept = kept / is_valid.sum().clamp(min=1)
    return divide(
        kept.sum(),
        loss_denominator(is_valid, reduction, max_decisions)
        if denominator is None
        else denominator,
    )


def loss_denominator(
    is_valid: Tensor, reduction: Reduction, max_decisions: int | None = None
) -> Tensor:
    """Return ``count_units``, at least 1: the denominator of a loss that is computed in one piece."""
    return count_units(is_valid, reduction, max_decisions).clamp(min=1)


def count_units(is_valid: Tensor, reduction: Reduction, max_decisions: int | None = None) -> Tensor:
    """Count what this micro-batch adds to the denominator; float64 scalar, 0 where nothing is valid.

        per_sequence         rows, with or without a valid unit    GRPO, arXiv 2402.03300
        per_sequence_sum     the same                              LUSPO, arXiv 2602.05261; "seq-mean-token-sum" of verl
        per_decision         valid units                           DAPO, arXiv 2503.14476
        constant             rows * L_max, valid or not            Dr. GRPO, arXiv 2503.20783
        per_decision_local   1: micro-batches are counted          "bnpo" of TRL: the one that depends on the split, because
                                                                   a decision in a short micro-batch weighs more

    Args:
        is_valid: bool [P, G, U].
        reduction: a name of the table.
        max_decisions: L_max, at least U; None = U, which is the padding of this micro-batch.

    Raises:
        ValueError: for an unknown reduction, or a row longer than max_decisions.
    """
    rows, units = is_valid.shape[0] * is_valid.shape[1], is_valid.shape[2]
    check_name(reduction, REDUCTIONS, "reduction")
    if reduction == "per_decision":
        return is_valid.sum().double()
    if reduction == "constant" and max_decisions is not None and max_decisions < units:
        raise ValueError(
            f"max_decisions must be at least the length of a row, {units}, got {max_decisions}; raise it"
        )
    constant = rows * (units if max_decisions is None else max_decisions)
    fixed = {
        "per_sequence": rows,
        "per_sequence_sum": rows,
        "constant": constant,
        "per_decision_local": 1,
    }
    return torch.tensor(float(fixed[reduction]), dtype=torch.float64, device=is_valid.device)


def mean_over(x: Tensor, *, denominator: Tensor | float | None = None) -> Tensor:
    """Return sum(x) / denominator, the denominator being that of the optimiser step; None = the mean of x."""
    return divide(x.sum(), float(max(1, x.numel())) if denominator is None else denominator)


def divide(total: Tensor, denominator: Tensor | float) -> Tensor:
    """Return total / denominator in the type of the total: a float64 count must not turn a float32 loss into float64."""
    return (total / denominator).to(total.dtype)
