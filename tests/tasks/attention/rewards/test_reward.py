import math

import torch
from tiny_attention import make_batch, make_task, shake
from tiny_objectives import LOGIT_3, bag_batch, bag_outcomes, batch, outcomes, rollouts
from torch import Tensor

from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.rewards.correct_class import class_component
from grpo_pipeline.tasks.attention.rewards.heatmap import heatmap_component

ALL = {"diversity": {"weight": 0.5}, "activation": {"weight": 0.25}, "boundary": {"weight": 2.0, "margin": 0.1}}


NAMES = ("diversity", "activation", "boundary")


def rewards_of(targets: AttentionBatch, made: Outcomes) -> dict[str, Tensor]:
    return {"class": class_component(targets, made), "heatmap": heatmap_component(targets, made)}


def test_reward_parts_golden():
    parts = rewards_of(batch([1.0, 0.0], [0.5, 0.0], 2), outcomes([[LOGIT_3, 0.0], [LOGIT_3, 0.0]], [[0.5, 0.25], [0.2, 0.0]]))
    # cancer: log 3/4, log 1/2; benign: log 1/4, log 1/2
    torch.testing.assert_close(parts["class"], torch.tensor([[3 / 4, 1 / 2], [1 / 4, 1 / 2]]).log())
    # (.5 log .5 + .5 log .5)/2, (.5 log .25 + .5 log .75)/2; log(1 - .2)/2, log(1 - 1e-4)/2 (clamped)
    expected = [[math.log(0.5) / 2, math.log(0.25 * 0.75) / 4], [math.log(0.8) / 2, math.log(1 - 1e-4) / 2]]
    torch.testing.assert_close(parts["heatmap"], torch.tensor(expected))
    parts = rewards_of(batch([1.0], [0.5], 2), outcomes([[0.0, 1.0]], [[0.5, 0.5]], grad=True))
    assert [part.requires_grad for part in parts.values()] == [False, False]
    targets = bag_batch(2)  # an empty bag has no heatmap to reward
    parts = rewards_of(targets, bag_outcomes(targets))
    assert parts["heatmap"][2].tolist() == [0.0, 0.0, 0.0]
    assert bool((parts["heatmap"][[0, 1, 3]] < 0).all())
    assert bool((parts["class"] < 0).all())


def test_every_part_differs_inside_the_group_and_is_0_without_points():
    """A part that is the same for all samples of a core cancels when they are compared (trap 5). 8 x 8 cells, G = 6."""
    task, generator = make_task(patch_size=4, reward=ALL), torch.Generator().manual_seed(0)
    policy, batch = task.build_policy(0), make_batch(task)
    shake(policy)
    context, grouped = task.encode(policy, batch), task.replicate(batch, 6)
    sampled = task.sample(policy, context, 6, temperature=1.0, proposal="policy", generator=generator)
    parts, weights = task.reward(grouped, sampled, task.decode(policy, context, sampled, grouped))
    assert weights == {"class": 1.0, "heatmap": 0.0, "diversity": 0.5, "activation": 0.25, "boundary": 2.0}
    empty = rollouts(torch.empty(4, 6, 0, dtype=torch.int64))
    nothing, _ = task.reward(grouped, empty, task.decode(policy, context, empty, grouped))
    for name in NAMES:
        assert parts[name].shape == (4, 6)
        assert not parts[name].requires_grad
        assert bool((parts[name].amax(1) - parts[name].amin(1) > 1e-3).all()), name
        assert torch.equal(nothing[name], torch.zeros(4, 6)), name
    one = make_task(patch_size=4, reward={"boundary": {"weight": 1.0, "margin": 0.1}})  # a part without weight is not there
    parts, weights = one.reward(grouped, sampled, one.decode(policy, context, sampled, grouped))
    assert parts.keys() == weights.keys() == {"class", "heatmap", "boundary"}
