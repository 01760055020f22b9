"""Apply temperature, top-k and top-p to logits; samplers and scorers use the same function, so that they agree.

How this differs from public versions: a scorer does not guess the kept set again from weights that have moved. It is handed
the set of sampling time (``kept``), so that a sampled token can never fall out of it and its ratio stays finite.
"""

import torch
from torch import Tensor
from torch.nn import functional

from grpo_pipeline.core.sampling.plackett_luce import gumbel_noise, masked_logits, tempered_logits


@torch.no_grad()
def kept_choices(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    is_allowed: Tensor | None = None,
) -> Tensor:
    """Say which choices survive temperature, then top-k, then top-p.

        top-k: the k likeliest choices
        top-p: the smallest set of likeliest choices whose mass, among what top-k leaves, reaches p; at least one choice

    Equal logits are ranked by index, the lower one first, so that the set is a function of the logits alone.
    Source: top-k, Fan et al., arXiv 1805.04833, section 5; top-p, Holtzman et al., arXiv 1904.09751, section 3.1.

    Args:
        logits: [..., V], finite where allowed.
        temperature: divides the logits, above 0; it moves the top-p set, not the top-k set.
        top_k: at least 1; a k above the number of allowed choices keeps them all. None: no limit.
        top_p: above 0, at most 1; exactly 1 keeps everything. None: no limit.
        is_allowed: bool [..., V]; None allows every choice.

    Returns:
        bool [..., V], at least one True in each row.

    Raises:
        ValueError: if temperature, top_k or top_p is out of range, or a row allows nothing (names the row).
    """
    if top_k is not None and top_k < 1:
        raise ValueError(
            f"top_k must be at least 1, got {top_k}; leave it out to keep every choice"
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(
            f"top_p must be above 0 and at most 1, got {top_p}; leave it out to keep every choice"
        )
    allowed = (
        torch.ones_like(logits, dtype=torch.bool)
        if is_allowed is None
        else is_allowed.expand(logits.shape)
    )
    z = masked_logits(tempered_logits(logits, temperature), allowed)
    if top_k is None and top_p in (None, 1.0):
        return allowed
    # Limits are applied by rank, and the kept ranks scattered back to the order of the choices.
    ranked, order = z.sort(dim=-1, descending=True, stable=True)
    is_kept = torch.ones_like(allowed)
    if top_k is not None:
        is_kept[..., top_k:] = False
    if top_p is not None and top_p < 1:
        is_kept &= _mass_before(ranked.masked_fill(~is_kept, -float("inf"))) < top_p
    return torch.zeros_like(is_kept).scatter_(-1, order, is_kept) & allowed


def truncated_log_probs(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    is_allowed: Tensor | None = None,
    kept: Tensor | None = None,
) -> Tensor:
    """Return the log-probabilities of the truncated categorical, renormalised over the kept set.

        log p_v = z_v - logsumexp(z over the kept set) where kept, else -inf,      z = logits / temperature

    Sampler: give the limits, and store ``kept_choices`` of the same limits (or ``log_probs > -inf``) with the actions,
    one byte per choice.
    Update: give the stored set as ``kept``. Truncating the moved logits afresh can drop a sampled token, whose
    log-probability is then -inf and its ratio 0, without gradient (test_moved_weights_can_drop_a_sampled_token).

    Args:
        logits: [..., V], finite where kept.
        temperature: divides the logits, above 0; the same number in sampler and scorer.
        top_k: see ``kept_choices``.
        top_p: see ``kept_choices``.
        is_allowed: bool [..., V]; None allows every choice.
        kept: bool [..., V], the kept set of sampling time; takes the place of top_k, top_p and is_allowed.

    Returns:
        [..., V] in the dtype of the logits, -inf where not kept; differentiable, the kept set being a constant.

    Raises:
        ValueError: as ``kept_choices``; if kept comes with a limit or a mask, or keeps nothing in a row (names the row).
    """
    if kept is not None and not (top_k is None and top_p is None and is_allowed is None):
        raise ValueError(
            f"kept must come alone, got top_k = {top_k}, top_p = {top_p} and "
            f"{'no mask' if is_allowed is None else 'is_allowed'} with it; the stored set already holds those limits"
        )
    if kept is None and is_allowed is None and top_k is None and top_p in (None, 1.0):
        return tempered_logits(logits, temperature).log_softmax(dim=-1)
    if kept is None:
        kept = kept_choices(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, is_allowed=is_allowed
        )
    return masked_logits(
        tempered_logits(logits, temperature), kept.expand(logits.shape)
    ).log_softmax(dim=-1)


@torch.no_grad()
def sample_categorical(log_probs: Tensor, *, generator: torch.Generator) -> Tensor:
    """Draw one choice from each row: the arg-max of log p + Gumbel noise.

    Source: Maddison et al., arXiv 1411.0030, section 2 (the Gumbel-Max trick).

    Args:
        log_probs: [..., V], -inf where a choice is excluded; need not be normalised.
        generator: the only source of randomness; on the device of log_probs.

    Returns:
        int64 [...], the index of the choice.
    """
    return (
        log_probs + gumbel_noise(tuple(log_probs.shape), like=log_probs, generator=generator)
    ).argmax(dim=-1)


def action_logprobs(log_probs: Tensor, actions: Tensor) -> Tensor:
    """Return the log-probability [...] of one action [...] of each row of log_probs [..., V]; -inf if it is not kept."""
    return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def _mass_before(ranked: Tensor) -> Tensor:
    """Return the mass of the choices ranked before each one, in float64: float32 cannot tell a tail of 1e-8 from none."""
    mass = ranked.to(torch.float64).softmax(dim=-1).cumsum(dim=-1)
    return functional.pad(mass[..., :-1], (1, 0))
