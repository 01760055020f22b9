"""Say by which count a term of the loss is divided: its own count in a whole batch, the count of the step in a piece of one."""

from typing import cast

from torch import Tensor

from grpo_pipeline.core.objective.policy import PolicyLoss
from grpo_pipeline.core.policy_gradient.kl import count_kl
from grpo_pipeline.core.policy_gradient.reductions import mean_over
from grpo_pipeline.pipelines.step.experience import Experience


def mean_over_prompts(values: Tensor, experience: Experience, term: str) -> Tensor:
    """Return the mean of one value per prompt, [P] -> scalar; in a piece of a batch its share of that."""
    counted = denominator_of(experience, term)
    return values.mean() if counted is None else mean_over(values, denominator=counted)


def denominator_of(experience: Experience, term: str) -> Tensor | None:
    """Return what this term is divided by in a micro-batch; None where the batch is whole."""
    share = experience.share
    return (
        None
        if share is None or share.denominators is None
        else cast(Tensor, getattr(share.denominators, term))
    )


def kl_denominator(params: PolicyLoss, experience: Experience) -> Tensor:
    """Return what a KL over decisions is divided by: that of the step, or of the whole batch counted here."""
    if experience.share is None:
        is_valid, longest = experience.rollouts.is_valid, params.max_decisions
        counted = count_kl(
            is_valid,
            ratio_level=params.ratio_level,
            reduction=params.reduction,
            max_decisions=longest,
        )
        return counted.clamp(min=1)
    return cast(Tensor, denominator_of(experience, "kl"))
