import math

import pytest
import torch

from grpo_pipeline.tasks.attention.losses.heatmap_outline import heatmap_outline_loss


def test_heatmap_against_outlines_equals_a_loop_over_pixels():
    """Inside the outline the label is asked, outside nothing; both count half, whatever their size."""
    generator = torch.Generator().manual_seed(8)
    z = torch.randn(3, 2, 5, 5, generator=generator)
    outline = torch.rand(3, 5, 5, generator=generator) * (torch.rand(3, 5, 5, generator=generator) < 0.4)
    outline[2] = 0.0
    label = torch.tensor([1.0, 0.0, 1.0])[:, None].expand(3, 2)
    found = heatmap_outline_loss(z, outline, label)
    for p in range(3):
        for g in range(2):
            sums, shares = [0.0, 0.0], [0.0, 0.0]
            for i in range(5):
                for j in range(5):
                    prob, share = torch.sigmoid(z[p, g, i, j]).item(), outline[p, i, j].item()
                    of_lesion = -math.log(prob if label[p, g] else 1 - prob)
                    for side, (weight, value) in enumerate([(share, of_lesion), (1 - share, -math.log(1 - prob))]):
                        sums[side] += weight * value
                        shares[side] += weight
            expected = sum(total / share for total, share in zip(sums, shares, strict=True) if share) / 2
            assert found[p, g].item() == pytest.approx(expected, rel=1e-5)
