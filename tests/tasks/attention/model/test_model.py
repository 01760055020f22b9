import torch
from tiny_attention import GRID, make_batch, make_task, shake
from torch import Tensor

from grpo_pipeline.tasks.attention.batch import Outcomes


def decode(points: Tensor, bag: Tensor | None = None, **model: str) -> Outcomes:
    task = make_task(**model)
    policy = task.build_policy(0)
    shake(policy)
    batch = make_batch(task, (0, 1))
    context = task.encode(policy, batch)
    return policy.decode(context.features, context.images, points, batch.bag if bag is None else bag)


def points(k: int = 3) -> Tensor:
    return torch.rand(2, 4, k, 2, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_bag_prob_is_the_mean_over_the_bag():
    bag = torch.zeros(2, 4 * GRID, 4 * GRID)
    bag[0, 2, 5], bag[0, 3, 7], bag[1, 0, 0] = 1.0, 0.5, 0.25
    made = decode(points(), bag)
    heat = made.mask_logits.sigmoid()
    torch.testing.assert_close(made.bag_probs[0], (heat[0, :, 2, 5] + 0.5 * heat[0, :, 3, 7]) / 1.5, atol=1e-6, rtol=0)
    torch.testing.assert_close(made.bag_probs[1], heat[1, :, 0, 0], atol=1e-6, rtol=0)


def test_frozen_encoder_has_no_trainable_weight():
    frozen, trained = (make_task(encoder=name).build_policy(0) for name in ("frozen", "train"))
    assert not any(p.requires_grad for p in frozen.sam.net.vision_encoder.parameters())
    assert all(p.requires_grad for p in trained.sam.net.vision_encoder.parameters())
    assert all(p.requires_grad for p in frozen.policy.parameters())
