"""Weigh replayed samples, as a correction for the policy that drew them.

An update takes the proximal policy, the one at its start, as the old policy of the clipped ratio, and multiplies each sample's
advantage by an importance weight from behaviour to proximal policy.
"""

import math

from torch import Tensor

from grpo_pipeline.core.groups import check_decisions
from grpo_pipeline.core.policy_gradient.ratios import LOG_RATIO_BOUND


def importance_weights(
    proximal_logprobs: Tensor, behaviour_logprobs: Tensor, is_valid: Tensor, *, cap: float | None
) -> Tensor:
    """Return the factor on each sample's advantage that corrects for the policy that drew it.

        w[p, g] = min(cap, exp(min(20, sum over valid L of (proximal - behaviour))))

    Without a cap the gradient at the proximal policy has the on-policy gradient as its expectation, for advantages whose
    baseline does not depend on the sample itself (leave-one-out; not the z-score of a group). A cap bounds the variance
    and biases towards the behaviour policy. Apply after normalisation of the advantages.
    Source: decoupled PPO, arXiv 2110.00641; truncation: IMPALA, arXiv 1802.01561, section 4.1 (there per decision).

    Args:
        proximal_logprobs: [P, G, L], of the stored actions under the policy at the start of the update.
        behaviour_logprobs: [P, G, L], under the policy that drew them.
        is_valid: bool [P, G, L]; what is not valid contributes exactly 0 to the sum, even if NaN.
        cap: largest weight, at least 1; None for no truncation.

    Returns:
        float64 [P, G], detached; exactly 1 where both log-probabilities are the same numbers, as for fresh groups.

    Raises:
        ValueError: if shapes differ, the cap is below 1, or a log-weight is NaN or +infinite (names the prompt and the sample).
    """
    check_decisions(
        is_valid, proximal_logprobs=proximal_logprobs, behaviour_logprobs=behaviour_logprobs
    )
    if cap is not None and not cap >= 1:
        raise ValueError(
            f"the cap of importance weights must be at least 1, got {cap}; a fresh sample weighs 1"
        )
    difference = proximal_logprobs.detach().double() - behaviour_logprobs.detach().double()
    log_weights = difference.masked_fill(~is_valid, 0.0).sum(dim=-1)  # [P, G]
    # A comparison that is False for NaN as well; -inf (an action that is no longer allowed) is the weight 0.
    is_bad = ~(log_weights < math.inf)  # [P, G]
    if bool(is_bad.any()):
        prompt, sample = is_bad.nonzero()[0].tolist()
        raise ValueError(
            f"importance weights must be finite, got the log {float(log_weights[prompt, sample])} for prompt {prompt}, sample "
            f"{sample}; look at the stored log-probabilities"
        )
    weights = log_weights.clamp(max=LOG_RATIO_BOUND).exp()
    return weights if cap is None else weights.clamp(max=cap)
