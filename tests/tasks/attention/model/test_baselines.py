import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_laplace
from torch import Tensor

from grpo_pipeline.core.sampling.plackett_luce import gumbel_top_k
from grpo_pipeline.tasks.attention.model.baselines import (
    blob_map,
    highest_points,
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


def test_a_dark_blob_is_found_wherever_it_is_and_points_stay_in_the_region():
    """A dark disc on a bright ground with a bright one beside it; scipy's Laplacian agrees where the highest cell is."""
    rows, columns = np.mgrid[:96, :96]
    images = np.full((3, 96, 96), 150, np.uint8)
    for image, (y, x) in zip(images, [(28, 60), (44, 20), (84, 84)], strict=True):
        image[(rows - y) ** 2 + (columns - x) ** 2 < 9**2] = 40
        image[(rows - 95 + y) ** 2 + (columns - 95 + x) ** 2 < 9**2] = 250
    scores = blob_map(torch.from_numpy(images)[:, None], 12)
    assert [divmod(cell, 12) for cell in scores.argmax(1).tolist()] == [(3, 7), (5, 2), (10, 10)]
    laplacian = [gaussian_laplace(image.astype(float), 6.5, mode="nearest")[4::8, 4::8].argmax() for image in images]
    assert laplacian == scores.argmax(1).tolist()
    region = torch.ones(3, 144, dtype=torch.bool)
    region[:, scores.argmax(1)] = False
    points = highest_points(scores, region, 2)
    assert points.shape == (3, 1, 2)
    for image in range(3):
        allowed = sorted(scores[image][region[image]].tolist(), reverse=True)
        assert scores[image][points[image, 0]].tolist() == allowed[:2]
        assert region[image][points[image, 0]].all()


def test_lesion_share_and_coverage_golden():
    actions = torch.tensor([[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[0, 1], [2, 3]]])
    lesion = torch.cat([cells(0, 2, 3), cells(9), cells()])
    np.testing.assert_array_equal(lesion_share(actions, lesion), [0.75, 0.0, np.nan])
    # Of the four allowed cells two are in the lesion; cell 15 of the lesion is outside the region.
    lesion = torch.cat([cells(0, 1, 15), cells()])
    np.testing.assert_array_equal(lesion_coverage(lesion, cells(0, 1, 2, 3).expand(2, -1)), [0.5, np.nan])


def test_blobs_do_not_hang_on_what_was_not_seen_nor_on_the_level_of_what_was():
    image = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0)) - 0.5
    image[..., :9] = 0.0  # not seen
    brighter = torch.where(image == 0, 0.0, image + 0.3)
    torch.testing.assert_close(blob_map(brighter, 4), blob_map(image, 4), rtol=0, atol=1e-6)
