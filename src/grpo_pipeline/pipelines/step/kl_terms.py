"""Make the terms of the KL to the reference and to the policy that sampled."""

from typing import cast

import torch
from torch import Tensor

from grpo_pipeline.core.params import AlgorithmParams, PolicyLossParams, is_on
from grpo_pipeline.core.policy_gradient.kl import (
    LossEstimator,
    categorical_kl,
    kl_loss,
    rollout_kl_loss,
)
from grpo_pipeline.core.policy_gradient.ratios import importance_ratio
from grpo_pipeline.core.policy_gradient.reductions import reduce_units
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.step.denominators import kl_denominator, mean_over_prompts
from grpo_pipeline.pipelines.step.experience import Experience


def kl_terms(
    algorithm: AlgorithmParams, params: PolicyLossParams, scores: Scores, experience: Experience
) -> dict[str, Tensor]:
    """Return the KL to the reference (``kl``) and to the policy that sampled (``kl_rollout``), where they are paid."""
    rollouts, terms = experience.rollouts, {}
    # Exact for each decision, from the task; else over the whole categorical, or estimated from the samples.
    if scores.kl is not None:
        counted = kl_denominator(params, experience)
        terms["kl"] = reduce_units(
            scores.kl, rollouts.is_valid, reduction=params.reduction, denominator=counted
        )
    elif algorithm.kl_placement == "loss" and experience.reference.logprobs is not None:
        exact = algorithm.kl_estimator == "exact"
        terms["kl"] = (
            _exact_kl(scores, experience)
            if exact
            else _estimated_kl(algorithm, params, scores, experience)
        )
    if is_on(algorithm.rollout_kl_weight):
        terms["kl_rollout"] = rollout_kl_loss(
            scores.logprobs,
            rollouts.logprobs,
            rollouts.is_valid,
            reduction=params.reduction,
            denominator=kl_denominator(params, experience, "rollout_kl"),
        )
    return terms


def _exact_kl(scores: Scores, experience: Experience) -> Tensor:
    log_q = experience.reference.log_probs_full
    if log_q is None or scores.log_probs_full is None:
        raise ValueError(
            "kl_estimator must be k2, k3 or ratio_k3 for a task that does not give the whole distribution, got exact; "
            "change it in the arm's algorithm"
        )
    # KL(p || q) of the whole categorical: [P, V] -> [P]; the reference is -inf where a choice is not allowed.
    return mean_over_prompts(
        categorical_kl(scores.log_probs_full, log_q, log_q > -torch.inf), experience, "kl"
    )


def _estimated_kl(
    algorithm: AlgorithmParams, params: PolicyLossParams, scores: Scores, experience: Experience
) -> Tensor:
    rollouts, ref_logprobs = experience.rollouts, experience.reference.logprobs
    ratio = None
    if algorithm.kl_estimator == "ratio_k3":
        ratio = importance_ratio(
            scores.logprobs, rollouts.logprobs, rollouts.is_valid, level=params.ratio_level
        )  # [P, G, L] or [P, G, 1]
    return kl_loss(
        scores.logprobs,
        cast(Tensor, ref_logprobs),
        rollouts.is_valid,
        estimator=cast(LossEstimator, algorithm.kl_estimator),
        ratio=ratio,
        reduction=params.reduction,
        denominator=kl_denominator(params, experience),
    )
