"""Put bottleneck adapters into a vision transformer: small trainable maps behind frozen sub-layers.

Houlsby et al. 2019 (arXiv 1902.00751), figure 2: one adapter behind attention and one behind the MLP of every block, each
inside the block's residual connection. The Medical SAM Adapter (arXiv 2304.12620) puts them into SAM; how this differs: both
adapters stand behind their sub-layer, where that one scales the second and runs it beside the MLP.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class Adapter(nn.Module):
    """Add a bottleneck to its input: x + W_up gelu(W_down x + b_down) + b_up, with W_up and b_up starting at 0."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank)
        self.up = nn.Linear(rank, width)
        for parameter in self.up.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Return the same shape, [..., width]."""
        bottleneck: Tensor = self.up(F.gelu(self.down(x)))
        return x + bottleneck


class Adapted(nn.Module):
    """A sub-layer followed by an adapter; of a tuple, as attention returns one, the first part is adapted."""

    def __init__(self, base: nn.Module, width: int, rank: int) -> None:
        super().__init__()
        self.base, self.adapter = base, Adapter(width, rank)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the sub-layer, then the adapter, cell by cell."""
        out = self.base(*args, **kwargs)
        return (self.adapter(out[0]), *out[1:]) if isinstance(out, tuple) else self.adapter(out)
