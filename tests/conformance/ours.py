"""Our functions on the cases, in the shape in which an oracle answers."""

from unittest import mock

import constants
import torch
from cases import GaeCase, LogitsCase, LossCase, RewardCase
from outcomes import Outcome, with_gradient
from surrogates import surrogate
from torch import Tensor

from grpo_pipeline.core.policy_gradient.advantages import Method, compute_advantages
from grpo_pipeline.core.policy_gradient.kl import LossEstimator, kl_loss
from grpo_pipeline.core.policy_gradient.names import RatioLevel, Reduction
from grpo_pipeline.core.policy_gradient.optimal_baseline import optimal_baseline_advantages
from grpo_pipeline.core.policy_gradient.pass_at_k import pass_at_k_advantages
from grpo_pipeline.core.policy_gradient.per_reward import per_reward_advantages
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss as our_policy_loss
from grpo_pipeline.core.policy_gradient.ratios import importance_ratio
from grpo_pipeline.core.policy_gradient.returns import discounted_returns, generalized_advantages
from grpo_pipeline.core.policy_gradient.uncertain_decisions import keep_uncertain
from grpo_pipeline.core.policy_gradient.value_loss import explained_variance as variance_explained
from grpo_pipeline.core.sampling import linear_logprobs as chunked_module
from grpo_pipeline.core.sampling.linear_logprobs import chunked_logprobs
from grpo_pipeline.core.sampling.plackett_luce import entropy_of, log_policy
from grpo_pipeline.core.sampling.truncation import truncated_log_probs
from grpo_pipeline.core.types import Advantages


def policy_loss(
    case: LossCase,
    *,
    algorithm: str,
    reduction: Reduction,
    level: RatioLevel = "decision",
    estimator: LossEstimator | None = None,
    delta: float | None = None,
    denominator: float | None = None,
) -> Outcome:
    """Return ``policy_loss``, plus the weighted ``kl_loss`` where an estimator is named."""
    clips = {"clip_low": constants.CLIP_LOW, "clip_high": constants.CLIP_HIGH}
    options = {
        "cispo": {"ratio_cap": constants.RATIO_CAP},
        "sapo": {},
        "vespo": {},
        "gmpo": {"clip_low": constants.LOG_CLIP, "clip_high": constants.LOG_CLIP},
        "clip_cov": clips | {"cov_share": constants.COV_ALL, "cov_low": constants.COV_LOW, "cov_high": constants.COV_HIGH},
        "kl_cov": {"cov_share": constants.COV_SHARE, "kl_weight": constants.COV_WEIGHT},
    }.get(algorithm, clips | {"delta": delta})
    if algorithm == "vespo":
        # The oracle divides by the decisions of the step, and not by its samples.
        denominator = float(case.is_valid.sum().clamp(min=1))
    longest = case.logprobs.shape[2] + constants.EXTRA_LENGTH if reduction == "constant" else None
    kind = surrogate(algorithm, ratio_level=level, reduction=reduction, max_decisions=longest, **options)

    def compute(logprobs: Tensor) -> Tensor:
        loss = our_policy_loss(
            logprobs,
            case.old_logprobs,
            case.advantages,
            case.is_valid,
            kind,
            denominator=denominator,
            # By the present policy, as the oracle does; None of a surrogate that selects nothing.
            selected=kind.select(case.logprobs, case.advantages, case.is_valid),
        )
        return loss if estimator is None else loss + constants.KL_WEIGHT * _kl(case, logprobs, estimator, level, reduction)

    return with_gradient(compute, case.logprobs)


def uncertain_loss(case: LossCase) -> Outcome:
    """Return the grpo loss of the decisions of largest entropy."""
    plain = Advantages(case.advantages, torch.zeros(len(case.advantages), dtype=torch.bool))
    kept = keep_uncertain(plain, case.entropies, case.is_valid, share=constants.TOP_ENTROPY).values
    kind = surrogate("grpo", clip_low=constants.CLIP_LOW, clip_high=constants.CLIP_HIGH)
    return with_gradient(lambda logprobs: our_policy_loss(logprobs, case.old_logprobs, kept, case.is_valid, kind), case.logprobs)


def optimal_baseline(case: RewardCase) -> Outcome:
    """Return ``optimal_baseline_advantages`` of the first part."""
    return Outcome(optimal_baseline_advantages(case.parts[..., 0], case.lengths).values)


def best_of_all(case: RewardCase) -> Outcome:
    """Return ``pass_at_k_advantages`` of the first part with k = G, divided by k as the oracle has them."""
    size = case.parts.shape[1]
    return Outcome(pass_at_k_advantages(case.parts[..., 0], k=size).values / size)


def whitened(case: RewardCase) -> Outcome:
    """Return ``compute_advantages``, reinforce_plus_plus, of the first part."""
    return Outcome(compute_advantages(case.parts[..., 0], method="reinforce_plus_plus", eps=0.0).values)


def advantages(case: RewardCase, *, method: Method = "group") -> Outcome:
    """Return ``compute_advantages`` of the first part."""
    return Outcome(compute_advantages(case.parts[..., 0] * case.weights[0], method=method, eps=constants.EPS).values)


def summed_advantages(case: RewardCase) -> Outcome:
    """Return ``compute_advantages`` of the weighted sum, as ``combine_rewards`` makes it: NaN where any part is missing."""
    return Outcome(compute_advantages((case.parts * case.weights).sum(-1), eps=constants.EPS).values)


def gdpo_advantages(case: RewardCase) -> Outcome:
    """Return ``per_reward_advantages`` of both parts."""
    parts, weights = dict(zip("ab", case.parts.unbind(-1), strict=True)), dict(zip("ab", case.weights.tolist(), strict=True))
    return Outcome(per_reward_advantages(parts, weights, eps=constants.EPS).values)


def gae(case: GaeCase) -> Outcome:
    """Return ``generalized_advantages``: advantages and value targets, stacked."""

    def compute(rewards: Tensor) -> Tensor:
        estimate = generalized_advantages(rewards, case.values, gamma=case.gamma, gae_lambda=case.gae_lambda, dones=case.dones)
        return torch.stack(estimate)

    return with_gradient(compute, case.rewards, cotangent=case.cotangent)


def returns(case: GaeCase) -> Outcome:
    """Return ``discounted_returns``."""
    return with_gradient(
        lambda rewards: discounted_returns(rewards, gamma=case.gamma, dones=case.dones), case.rewards, cotangent=case.cotangent
    )


def explained_variance(case: GaeCase) -> Outcome:
    """Return ``explained_variance`` of the values taken as predictions of the rewards."""
    value = variance_explained(case.values[:, :-1], case.rewards)
    return Outcome(torch.tensor(value, dtype=torch.float64))


def chunked(case: LogitsCase, *, part: int) -> Outcome:
    """Return ``chunked_logprobs``: the log-probabilities (part 0) or the entropies (part 1), in blocks of at most 3 x 5."""

    def compute(hidden: Tensor, weight: Tensor) -> Tensor:
        return chunked_logprobs(hidden, weight, case.actions, temperature=case.temperature, chunk_rows=3)[part]

    with mock.patch.object(chunked_module, "BLOCK_NUMBERS", 15):
        return with_gradient(compute, case.hidden, case.weight, cotangent=case.cotangent[part])


def full(case: LogitsCase, *, part: int) -> Outcome:
    """Return the same by ``log_policy`` and ``entropy_of``, which hold all logits."""

    def compute(hidden: Tensor, weight: Tensor) -> Tensor:
        log_probs = _log_probs(case, hidden, weight)
        return entropy_of(log_probs) if part else log_probs.gather(-1, case.actions[..., None])[..., 0]

    return with_gradient(compute, case.hidden, case.weight, cotangent=case.cotangent[part])


def truncated(case: LogitsCase) -> Outcome:
    """Return the squared probabilities of ``truncated_log_probs`` under top-k and top-p, [B * T, V]."""

    def compute(hidden: Tensor, weight: Tensor) -> Tensor:
        log_probs = truncated_log_probs(
            hidden @ weight.T, temperature=case.temperature, top_k=constants.TOP_K, top_p=constants.TOP_P
        )
        return log_probs.flatten(0, 1).exp().square()

    return with_gradient(compute, case.hidden, case.weight)


def head_ppo(case: LogitsCase) -> Outcome:
    """Return the PPO loss of a linear categorical policy; advantages and rollout policy come from the cotangents."""

    def compute(hidden: Tensor) -> Tensor:
        logprobs = _log_probs(case, hidden, case.weight).gather(-1, case.actions[..., None])
        old = logprobs.detach() + 0.5 * case.cotangent[1][..., None]
        is_valid = torch.ones_like(logprobs, dtype=torch.bool)
        return our_policy_loss(
            logprobs,
            old,
            case.cotangent[0],
            is_valid,
            surrogate("ppo", clip_low=constants.CLIP_LOW, clip_high=constants.CLIP_HIGH, reduction="per_decision"),
        )

    return with_gradient(compute, case.hidden)


def fused_head(case: LogitsCase) -> Outcome:
    """Return the on-policy dapo loss on top of ``chunked_logprobs``."""

    def compute(hidden: Tensor, weight: Tensor) -> Tensor:
        logprobs = chunked_logprobs(hidden, weight, case.actions, temperature=case.temperature)[0][None]
        is_valid = torch.ones_like(logprobs, dtype=torch.bool)
        return our_policy_loss(logprobs, logprobs.detach(), case.cotangent[0, None, :, 0], is_valid, surrogate("dapo"))

    return with_gradient(compute, case.hidden, case.weight)


def _kl(case: LossCase, logprobs: Tensor, estimator: LossEstimator, level: RatioLevel, reduction: Reduction) -> Tensor:
    ratio = importance_ratio(logprobs, case.old_logprobs, case.is_valid, level=level) if estimator == "ratio_k3" else None
    return kl_loss(logprobs, case.ref_logprobs, case.is_valid, estimator=estimator, ratio=ratio, reduction=reduction)


def _log_probs(case: LogitsCase, hidden: Tensor, weight: Tensor) -> Tensor:
    logits = (hidden @ weight.T).flatten(0, 1)
    log_probs = log_policy(logits, torch.ones_like(logits, dtype=torch.bool), case.temperature)
    return log_probs.unflatten(0, case.actions.shape)
