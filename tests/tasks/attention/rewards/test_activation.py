import numpy as np
import pytest
import torch
from tiny_objectives import rollouts

from grpo_pipeline.tasks.attention.rewards.activation import activation


def test_activation_equals_a_naive_loop():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 3, 16, 16, generator=generator)
    actions = torch.randint(16, (2, 3, 2), generator=generator)
    is_valid = torch.tensor([[[True, True], [True, False], [False, False]]] * 2)
    got = activation(logits, rollouts(actions, is_valid), grid=4)
    for p, g in np.ndindex(2, 3):
        places = [divmod(cell, 4) for cell in actions[p, g][is_valid[p, g]].tolist()]
        values = [float(logits[p, g, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].sigmoid().mean()) for i, j in places]
        assert float(got[p, g]) == pytest.approx(sum(values) / len(values) if values else 0.0, abs=1e-6)
