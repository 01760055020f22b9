"""Draw a token from each distribution with a random number, by inverting the distribution function."""

import torch
from torch import Tensor


@torch.no_grad()
def draw_tokens(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """Find the first token v whose cumulated mass p_0 + ... + p_v exceeds u.

    How this differs from public versions: a draw takes a single number, not a number per choice. Sums are in float64, so that a
    token of mass 1e-9 is drawn with the right frequency.

    Args:
        log_probs: [..., V], -inf where a token is excluded, which is then never drawn.
        uniform: float64 [...], in [0, 1).

    Returns:
        int64 [...].
    """
    mass = log_probs.to(torch.float64).exp().cumsum(dim=-1)
    # Divided by itself, the end is exactly 1, above every uniform number: excluded tokens at the end are never drawn.
    distribution = mass / mass[..., -1:]
    tokens = torch.searchsorted(distribution, uniform[..., None], right=True)[..., 0]
    return tokens.clamp_max(log_probs.shape[-1] - 1)  # only NaN is clamped; the loss refuses it
