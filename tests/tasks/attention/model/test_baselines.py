import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_pipeline.core.sampling.plackett_luce import gumbel_top_k
from grpo_pipeline.tasks.attention.model.baselines import (
    lesion_coverage,
    lesion_share,
    nearest_cells,
    oracle_logits,
    region_centroids,
)

GRID = 4


def cells(*allowed: int) -> Tensor:
    mask = torch.zeros(1, GRID * GRID, dtype=torch.bool)
    mask[0, list(allowed)] = True
    return mask


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_rules_without_a_model_golden():
    # From the top left corner (0.1, 0.2): cell 0 at (.125, .125), then 4 at (.125, .375), then 1 at (.375, .125).
    target = torch.tensor([[0.1, 0.2]])
    assert nearest_cells(target, cells(*range(16)), GRID, 3).tolist() == [[[0, 4, 1]]]
    assert nearest_cells(target, cells(1, 5, 15), GRID, 3).tolist() == [[[1, 5, 15]]]
    # Cells 1 and 11: ((.375 + .875) / 2, (.125 + .625) / 2)
    torch.testing.assert_close(region_centroids(cells(1, 11), GRID), torch.tensor([[0.625, 0.375]]))


def test_oracle_points():
    def drawn(lesion: Tensor, region: Tensor, k: int, n: int = 200) -> Tensor:
        return gumbel_top_k(oracle_logits(lesion, region), k, n, generator=generator(), is_allowed=region)

    assert set(drawn(cells(1, 2, 5, 6), cells(*range(12)), 3).flatten().tolist()) == {1, 2, 5, 6}
    first, second = drawn(cells(1, 15), cells(1, 2, 3), 2)[0].T.tolist()
    assert (set(first), set(second)) == ({1}, {2, 3})  # 15 is in the lesion, but not in the region
    counts = torch.bincount(drawn(cells(), cells(3, 4, 5, 6), 1, 4000).flatten(), minlength=16)
    assert counts[3:7].tolist() == pytest.approx([1000] * 4, abs=110)  # 4 sigma of a binomial(4000, 1/4)


def test_lesion_share_and_coverage_golden():
    actions = torch.tensor([[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[0, 1], [2, 3]]])
    lesion = torch.cat([cells(0, 2, 3), cells(9), cells()])
    np.testing.assert_array_equal(lesion_share(actions, lesion), [0.75, 0.0, np.nan])
    # Of the four allowed cells two are in the lesion; cell 15 of the lesion is outside the region.
    lesion = torch.cat([cells(0, 1, 15), cells()])
    np.testing.assert_array_equal(lesion_coverage(lesion, cells(0, 1, 2, 3).expand(2, -1)), [0.5, np.nan])
