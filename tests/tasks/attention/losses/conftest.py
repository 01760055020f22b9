import pytest
import torch
from torch import Tensor

P, G, SIDE = 3, 2, 5


@pytest.fixture
def made() -> tuple[Tensor, Tensor, Tensor]:
    """Logits, a bag of partly covered pixels (the last core's is empty) and labels 1, 0, 1."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(P, G, SIDE, SIDE, dtype=torch.float64, generator=generator)
    bag = torch.rand(P, SIDE, SIDE, dtype=torch.float64, generator=generator)
    bag[bag < 0.4] = 0.0
    bag[2] = 0.0
    return logits, bag, torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
