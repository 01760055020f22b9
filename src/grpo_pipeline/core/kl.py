"""Kullback-Leibler divergence: three estimators from samples, and the exact one of a categorical; in nats.

The samples must come from the first policy (l = log p of the sampled action, q = its log-prob under the reference).
Source of k1, k2, k3: Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html, 2020).
"""

from torch import Tensor


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return l - q: unbiased, high variance. Use it in a reward only: as a loss its expected gradient is 0."""
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return (l - q)^2 / 2: biased in value, but its expected gradient is that of the exact KL on-policy."""
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return exp(q - l) - (q - l) - 1: unbiased and never negative."""
    difference = ref_logprobs - logprobs
    # expm1 keeps the digits that exp(x) - 1 loses near 0 (test_k3_keeps_digits_near_zero).
    return difference.expm1() - difference


def categorical_kl(log_p: Tensor, log_q: Tensor, is_allowed: Tensor) -> Tensor:
    """Return the exact KL(p || q) of two categoricals.

        KL = sum over allowed v of p_v * (log p_v - log q_v)

    Choices that are not allowed, or have p = 0, contribute exactly 0, in the value and in the gradient. A choice with
    p > 0 and q = 0 makes it infinite, as it should.

    Args:
        log_p: [..., V], normalised, may be -inf.
        log_q: [..., V], normalised, may be -inf.
        is_allowed: bool [..., V] or broadcastable.

    Returns:
        [...], at least 0 up to rounding.
    """
    is_counted = is_allowed & (log_p > -float("inf"))
    safe_p = log_p.masked_fill(~is_counted, 0.0)
    safe_q = log_q.masked_fill(~is_counted, 0.0)
    return (safe_p.exp() * (safe_p - safe_q)).sum(dim=-1)
