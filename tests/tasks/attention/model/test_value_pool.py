import numpy as np
import pytest
import torch
from tiny_attention import algorithm_params, make_batch, make_data, make_state, make_task, shake, training_params
from torch import Tensor

from grpo_pipeline.pipelines.training.loop import Fold
from grpo_pipeline.tasks.attention.model.policy_head import PolicyNetwork, pool_cells, pooled_channels

POOLS = ["image", "region", "attention"]


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features, logits = torch.randn(3, 5, 4, 4, generator=generator), 2 * torch.randn(3, 16, generator=generator)
    cells = torch.rand(3, 16, generator=generator) < 0.5
    cells[2] = torch.arange(16) == 7  # one cell
    return features - 1.0, logits, cells


def naive(features: Tensor, logits: Tensor, cells: Tensor, pool: str) -> Tensor:
    rows = []
    for image, scores, inside in zip(features.flatten(2), logits, cells, strict=True):
        chosen = range(16) if pool == "image" else [v for v in range(16) if inside[v]]
        weight = {v: float(scores[v].exp()) if pool == "attention" else 1.0 for v in chosen}
        mean = [sum(weight[v] * float(channel[v]) for v in chosen) / sum(weight.values()) for channel in image]
        rows.append(mean + ([max(float(channel[v]) for v in chosen) for channel in image] if pool == "region" else []))
    return torch.tensor(rows)


@pytest.mark.parametrize("pool", POOLS)
def test_equals_a_naive_loop(pool: str):
    features, logits, cells = inputs()
    pooled = pool_cells(features, logits, cells, pool)
    assert pooled.shape == (3, pooled_channels(5, pool))
    torch.testing.assert_close(pooled, naive(features, logits, cells, pool), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pool", POOLS)
def test_no_gradient_reaches_the_map(pool: str):
    torch.manual_seed(0)
    policy = PolicyNetwork(16, 8, 5, pool)
    shake(policy)
    generator = torch.Generator().manual_seed(1)
    features, texture = torch.randn(3, 16, 4, 4, generator=generator), torch.randn(3, 5, 4, 4, generator=generator)
    policy(features, texture, inputs()[2])[1].sum().backward()
    assert all(p.grad is None for p in policy.attention.parameters())
    assert all(float(p.grad.abs().sum()) > 0 for p in policy.trunk[0][0].parameters())


def test_the_image_pool_needs_no_cells_and_the_others_say_so():
    features, logits, cells = inputs()
    assert torch.equal(pool_cells(features, logits, None, "image"), pool_cells(features, logits, cells, "image"))
    for pool in ("region", "attention"):
        with pytest.raises(ValueError, match=f"the cells of the region must be given for value_pool '{pool}', got None"):
            pool_cells(features, logits, None, pool)


@pytest.mark.parametrize("pool", POOLS)
def test_an_arm_with_a_value_baseline_learns_it(pool: str):
    """On one batch again and again the value head comes to explain part of the rewards' variance."""
    task, data = make_task(value_pool=pool), make_data()
    algorithm = algorithm_params(
        name="ppo", value_weight=1.0, advantage={"method": "mean_only", "baseline": "value"}, supervised_weight=0.0, kl_weight=0.0
    )
    training = training_params(optimizer={"learning_rates": {"value_head": 0.05}})
    state, fold = make_state(task, data, algorithm, training), Fold(task, algorithm, training)
    explained = []
    for _ in range(8):
        state, metrics = fold(state, make_batch(task, tuple(range(8))))
        explained.append(metrics["value/explained_variance"])
    assert np.isfinite(explained).all()
    assert explained[-1] > explained[0] + 0.1
