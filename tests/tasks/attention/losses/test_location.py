from dataclasses import replace

import numpy as np
import torch
from tiny_attention import make_batch, make_data, make_task, shake

from grpo_pipeline.tasks.attention.losses.location import location_loss


def test_the_policy_is_told_the_outline_where_outlines_are_shown():
    task = make_task(patch_size=4)
    found = make_batch(task)
    place = torch.zeros_like(found.outline if found.outline is not None else found.bag)
    place[:, 8:12, 8:12] = 1.0  # the cell (2, 2) of the grid of 8
    logits = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    expected = -logits.masked_fill(~found.cells, -torch.inf).log_softmax(1)[:, 18]
    torch.testing.assert_close(location_loss(logits, replace(found, outline=place), 8), expected)
    assert not torch.allclose(location_loss(logits, found, 8), expected)


def test_the_share_of_the_policy_s_place_is_that_of_outlines_or_of_bags():
    """With no share of the cores nothing but the place of the first point is left: B is its mean over those that have one."""
    plain = {"heatmap": None, "glimpse": None, "location": {"weight": 2.0}}
    for given, shares, share in (({"mask_share": 1.0}, [0.0, 0.25, 0.5], 0.5), ({}, [0.0, 0.25], 0.25)):
        task = make_task(patch_size=4, supervised=plain | given)
        policy, batch = task.build_policy(0), task.make_batch(make_data(), np.array([2, 3, 5, 7]))
        shake(policy)
        context = task.encode(policy, batch)
        rollouts = task.sample(policy, context, 2, temperature=1.0, proposal="policy", generator=torch.Generator().manual_seed(0))
        grouped = task.replicate(batch, 2)
        outcomes = task.decode(policy, context, rollouts, batch)
        found = task.supervised_loss(policy, context, grouped, outcomes, torch.tensor(shares))
        losses = location_loss(policy.propose(context)[0].cells, batch, task.grid)
        members = batch.bag.flatten(1).any(1) if batch.outline is None else batch.outline.flatten(1).any(1)
        assert members.tolist() == ([False, True, True, True] if given else [True] * 4)
        torch.testing.assert_close(found, 2 * share * losses[members].mean())


def test_a_cell_of_which_half_is_covered_is_the_place_else_the_one_covered_most():
    """Cells (1, 1) and (1, 2) of the grid of 8, of 16 pixels each, which are covered by 12 and 4, 4 and 2, or 8 and 8."""
    batch = make_batch(make_task(patch_size=4))
    logits = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    chances = logits.masked_fill(~batch.cells, -torch.inf).log_softmax(1)
    for first, second, expected in ((12, 4, [9]), (4, 2, [9]), (8, 8, [9, 10])):
        place = torch.zeros(4, 32, 32)
        for left, covered in ((4, first), (8, second)):
            place[:, 4:8, left : left + 4] = (torch.arange(16) < covered).reshape(4, 4).float()
        found = location_loss(logits, replace(batch, outline=place), 8)
        torch.testing.assert_close(found, -chances[:, expected].logsumexp(1))
