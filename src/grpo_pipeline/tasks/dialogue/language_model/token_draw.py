"""Draw one token from each distribution with one random number, by inverting the distribution function."""

import torch
from torch import Tensor


@torch.no_grad()
def draw_tokens(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """Return the first token v whose cumulated mass p_0 + ... + p_v exceeds u.

    How this differs from public versions: one number per token and not one per choice, and sums in float64, so that a token of
    mass 1e-9 is drawn as often as it should be.

    Args:
        log_probs: [..., V], -inf where a token is excluded, which is then never drawn.
        uniform: float64 [...], in [0, 1).

    Returns:
        int64 [...].
    """
    mass = log_probs.to(torch.float64).exp().cumsum(dim=-1)
    # Divided by itself the end is exactly 1, above every uniform number: no excluded token at the end can be hit.
    distribution = mass / mass[..., -1:]
    tokens = torch.searchsorted(distribution, uniform[..., None], right=True)[..., 0]
    return tokens.clamp_max(log_probs.shape[-1] - 1)  # only NaN is clamped; the loss refuses it
