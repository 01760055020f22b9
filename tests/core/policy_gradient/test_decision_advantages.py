import math
from itertools import product

import numpy as np
import pytest
import torch
from naive_scores import score

from grpo_pipeline.core.policy_gradient.decision_advantages import decision_advantages
from grpo_pipeline.core.types import Credits


@pytest.mark.parametrize("std", ["sample", "population"])
@pytest.mark.parametrize("eps", [None, 0.25])
def test_decisions_are_compared_at_their_position_where_an_ended_sample_has_zero(std, eps):
    """Three prompts of four samples that end after one to three decisions; by numpy, one position at a time."""
    rng, lengths = np.random.default_rng(3), np.array([[3, 1, 2, 3], [2, 2, 1, 3], [1, 2, 3, 3]])
    is_valid = np.arange(3) < lengths[..., None]
    values = np.where(is_valid, rng.normal(size=(3, 4, 3)), 0.0)
    values[1] = np.where(is_valid[1], 0.5, 0.0)  # alike in what was decided, but not in what had ended
    values[2] = 0.0
    values[0, 1] = math.nan  # not scored
    credits = Credits(torch.from_numpy(values).requires_grad_(), torch.from_numpy(is_valid))
    found = decision_advantages(credits, std=std, **({} if eps is None else {"eps": eps}))
    wanted = np.zeros((3, 4, 3))
    for p, position in product(range(3), range(3)):
        group = values[p, :, position]
        if np.nanmax(group) > np.nanmin(group):
            wanted[p, :, position] = np.nan_to_num(score(group, std, 1e-4 if eps is None else eps))
    wanted[~is_valid] = 0.0
    np.testing.assert_allclose(found.values.numpy(), wanted, rtol=1e-12)
    assert found.values[1, :, 0].tolist() == [0.0] * 4
    assert bool(found.values[1].any())
    assert (found.is_tied.tolist(), found.values.requires_grad) == ([False, False, True], False)
    # A wide tolerance makes the second prompt tie at every position, too.
    wide = decision_advantages(credits, std=std, tie_tolerance=1.0)
    assert wide.is_tied.tolist() == [False, True, True]
