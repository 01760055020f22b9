"""Stay near a reference policy: its KL as a term of the loss."""

from typing import cast

import torch
from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.kl import categorical_kl, count_kl, kl_loss
from grpo_pipeline.core.policy_gradient.ratios import importance_ratio
from grpo_pipeline.core.policy_gradient.reductions import reduce_units
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.step.denominators import (
    denominator_of,
    mean_over_prompts,
    prompts_of,
)
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.pipelines.step.part import StepPart
from grpo_pipeline.pipelines.step.scoring import scores_kl
from grpo_pipeline.tasks.base import Task


def kl_term(
    algorithm: AlgorithmParams, task: Task, scores: Scores, experience: Experience
) -> dict[str, Tensor]:
    """Return the KL to the reference: of each decision from the task, else over the whole categorical, or from the samples."""
    params, kl = algorithm.losses.policy, algorithm.losses.kl
    assert params is not None
    assert kl is not None
    if kl.estimator == "exact" and scores.kl is None:
        return {"kl": _exact_kl(scores, experience)}
    rollouts, counted = experience.rollouts, denominator_of(experience, "kl")
    if counted is None:
        counted = count_kl_of(algorithm, task, experience).clamp(min=1)
    if kl.estimator == "exact":
        exact = reduce_units(
            cast(Tensor, scores.kl),
            rollouts.is_valid,
            reduction=params.reduction,
            denominator=counted,
        )
        return {"kl": exact}
    ratio = None
    if kl.estimator == "ratio_k3":
        ratio = importance_ratio(
            scores.logprobs, rollouts.logprobs, rollouts.is_valid, level=params.ratio_level
        )  # [P, G, L] or [P, G, 1]
    estimated = kl_loss(
        scores.logprobs,
        cast(Tensor, experience.reference.logprobs),
        rollouts.is_valid,
        estimator=kl.estimator,
        ratio=ratio,
        reduction=params.reduction,
        denominator=counted,
    )
    return {"kl": estimated}


def _exact_kl(scores: Scores, experience: Experience) -> Tensor:
    log_q = experience.reference.log_probs_full
    if log_q is None or scores.log_probs_full is None:
        raise ValueError(
            "losses.kl.estimator must be k2, k3 or ratio_k3 for a task that does not give the whole distribution, got exact; "
            "change it in the arm's algorithm"
        )
    # KL(p || q) of the whole categorical: [P, V] -> [P]; the reference is -inf where a choice is not allowed.
    return mean_over_prompts(
        categorical_kl(scores.log_probs_full, log_q, log_q > -torch.inf), experience, "kl"
    )


def count_kl_of(algorithm: AlgorithmParams, task: Task, experience: Experience) -> Tensor:
    """Count prompts for the exact KL over the whole categorical, else what a KL over decisions is divided by."""
    params = algorithm.losses.policy
    assert params is not None
    if algorithm.pays_exact_kl and not scores_kl(task):
        return prompts_of(algorithm, task, experience)
    return count_kl(
        experience.rollouts.is_valid,
        ratio_level=params.ratio_level,
        reduction=params.reduction,
        max_decisions=params.max_decisions,
    )


PART = StepPart(
    is_in=lambda algorithm: algorithm.losses.kl is not None,
    rows={
        "loss": (("loss", "kl_term", kl_term, "algorithm task scores experience"),),
    },
    counts={"kl": count_kl_of},
)
