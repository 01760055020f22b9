import math

import torch
from tiny_objectives import LOGIT_3

from grpo_pipeline.tasks.attention.losses.outline import outline_loss


def test_outline_loss_golden():
    # Two pixels, p = 3/4 and 1/2 against 1 and 0: BCE (-log 3/4 - log 1/2) / 2; Dice 2 * 3/4 / (5/4 + 1).
    z, outline = torch.tensor([[[[LOGIT_3, 0.0]]]]), torch.tensor([[[1.0, 0.0]]])
    expected = -(math.log(3 / 4) + math.log(1 / 2)) / 2 + 1 - 1.5 / 2.25
    torch.testing.assert_close(outline_loss(z, outline), torch.tensor([[expected]]))
    right = outline_loss(60 * (2 * outline[:, None] - 1), outline)
    torch.testing.assert_close(right, torch.zeros(1, 1), atol=1e-6, rtol=0)
    assert bool(torch.isfinite(outline_loss(-60 * torch.ones(1, 1, 2, 2), torch.zeros(1, 2, 2))).all())
