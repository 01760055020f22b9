"""Pack the mask of the tokens that top-k and top-p keep, in a bit per token.

The mask is stored with a reply, so that an update scores the same distribution. Otherwise, moved weights would truncate anew and
could drop a token that was sampled (``core.sampling.truncation``). With a bit per token, 32 000 choices take 4 kB.
"""

import torch
from torch import Tensor

BITS = 8


def pack(is_kept: Tensor) -> Tensor:
    """Pack bool [..., V] into uint8 [..., ceil(V / 8)]; choice v is bit v % 8 of byte v // 8."""
    spare = -is_kept.shape[-1] % BITS
    padded = torch.nn.functional.pad(is_kept.to(torch.uint8), (0, spare))  # [..., 8 * ceil(V / 8)]
    bits = padded.reshape(*is_kept.shape[:-1], -1, BITS)  # [..., ceil(V / 8), 8]
    return torch.sum(bits << _shifts(is_kept), dim=-1, dtype=torch.uint8)


def unpack(packed: Tensor, choices: int) -> Tensor:
    """Unpack the result of ``pack`` to bool [..., V], V = choices."""
    # [..., ceil(V / 8), 1] >> [8] -> [..., ceil(V / 8), 8] -> [..., V], without the spare bits.
    return ((packed[..., None] >> _shifts(packed)) & 1).bool().flatten(-2)[..., :choices]


def _shifts(like: Tensor) -> Tensor:
    return torch.arange(BITS, dtype=torch.uint8, device=like.device)
