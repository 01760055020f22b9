import numpy as np
import torch
from scipy.ndimage import distance_transform_edt

from grpo_pipeline.tasks.attention.rewards.edge_distance import distance_to_edge


def test_equals_scipys_distance_transform():
    generator = np.random.default_rng(0)
    for grid in (1, 2, 7, 16):
        cells = generator.random((5, grid, grid)) < 0.8
        cells[0], cells[1] = True, False
        got = distance_to_edge(torch.as_tensor(cells).flatten(1), grid).reshape(5, grid, grid).numpy()
        for row in range(5):
            centres = distance_transform_edt(np.pad(cells[row], 1))[1:-1, 1:-1]
            expected = np.where(cells[row], (centres - 0.5) / grid, 0.0)
            np.testing.assert_allclose(got[row], expected, atol=1e-6)
