"""Count the denominators of one optimiser step over all of its micro-batches, before the first of them is computed.

A loss that each micro-batch divides by its own count weighs a decision in a short micro-batch more than one in a long
micro-batch. Here every micro-batch divides by one number, and the gradients add up to that of the whole batch:

    counts = [count(mask, ...) for mask in the masks of this process's micro-batches]
    step = all_reduce_counts(add(*counts), gradient_reduction="mean")
    for each micro-batch: backward(policy_loss(..., denominator=step.policy) + ...)      # no further division

Each process must count the same terms in the same order; how many micro-batches it has is its own affair.
"""

from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from grpo_pipeline.core.policy_gradient.kl import count_kl
from grpo_pipeline.core.policy_gradient.names import RatioLevel, Reduction, check_name
from grpo_pipeline.core.policy_gradient.ratios import counted_units
from grpo_pipeline.core.policy_gradient.reductions import count_units

GradientReduction = Literal["sum", "mean"]


@dataclass(frozen=True)
class StepDenominators:
    """One float64 scalar per term of the loss; raw counts until ``all_reduce_counts`` has finished them.

    Attributes:
        policy: what the reduction of the policy loss counts, see ``count_units``.
        kl: what the reduction of the sampled KL counts; prompts for the exact KL.
        entropy: prompts.
        value: prompts with a return (not NaN).
        supervised: examples with a target.
    """

    policy: Tensor
    kl: Tensor
    entropy: Tensor
    value: Tensor
    supervised: Tensor


def count(
    is_valid: Tensor,
    *,
    ratio_level: RatioLevel,
    reduction: Reduction,
    kl_reduction: Reduction | None = None,
    returns: Tensor | None = None,
    examples: int | None = None,
    max_decisions: int | None = None,
) -> StepDenominators:
    """Count what one micro-batch adds to each denominator.

    Args:
        is_valid: bool [P, G, L], the decisions of the micro-batch.
        ratio_level: that of the policy loss.
        reduction: that of the policy loss.
        kl_reduction: that of ``kl_loss``; None for the exact KL, a mean over prompts.
        returns: targets of the value head, NaN where not scored; None counts every prompt.
        examples: supervised examples; None counts every prompt.
        max_decisions: L_max of the reduction ``constant``. Give it: padding differs between micro-batches.

    Raises:
        ValueError: for an unknown name, or a row longer than max_decisions.
    """
    prompts = _scalar(is_valid.shape[0], is_valid)
    return StepDenominators(
        policy=count_units(counted_units(is_valid, ratio_level), reduction, max_decisions),
        kl=prompts
        if kl_reduction is None
        else count_kl(
            is_valid, ratio_level=ratio_level, reduction=kl_reduction, max_decisions=max_decisions
        ),
        entropy=prompts,
        value=prompts if returns is None else (~returns.isnan()).sum().double(),
        supervised=prompts if examples is None else _scalar(examples, is_valid),
    )


def add(*counts: StepDenominators) -> StepDenominators:
    """Add up the raw counts of micro-batches, term by term.

    Raises:
        ValueError: if there are none.
    """
    if not counts:
        raise ValueError(
            "a step must have at least one micro-batch, got none; count before the first backward pass"
        )
    return _from_vector(torch.stack([_to_vector(c) for c in counts]).sum(dim=0))


def all_reduce_counts(
    counts: StepDenominators,
    *,
    gradient_reduction: GradientReduction,
    group: dist.ProcessGroup | None = None,
) -> StepDenominators:
    """Finish raw counts: add them up over the processes, at least 1, in the scale that the gradients need.

        sum    D = max(1, sum over processes)             the processes' gradients are added
        mean   D = max(1, sum over processes) / world     they are averaged, as DistributedDataParallel does

    The smallest count is 1 before it is scaled: a term that nothing counts has the sum 0 and the gradient 0. Without an
    initialised process group both are the counts of this process. One collective call; the counts must lie where the
    group's backend can read them.

    Raises:
        ValueError: for an unknown gradient_reduction.
    """
    check_name(gradient_reduction, get_args(GradientReduction), "gradient_reduction")
    vector, world = _to_vector(counts), 1  # [terms]
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(vector, op=dist.ReduceOp.SUM, group=group)
        world = dist.get_world_size(group)
    return _from_vector(vector.clamp(min=1.0) / (world if gradient_reduction == "mean" else 1))


def _scalar(value: float, like: Tensor) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64, device=like.device)


def _to_vector(counts: StepDenominators) -> Tensor:
    return torch.stack([getattr(counts, field.name) for field in fields(counts)])


def _from_vector(vector: Tensor) -> StepDenominators:
    return StepDenominators(*vector.unbind())
