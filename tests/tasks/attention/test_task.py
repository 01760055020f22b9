import json

import numpy as np
import pytest
import torch
from tiny_attention import make_batch, make_data, make_examples, make_task, shake
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.losses import supervised_loss
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.task import AttentionTask
from grpo_pipeline.tasks.base import Proposal


def make_policy(task: AttentionTask) -> AttentionModel:
    policy = task.build_policy(0)
    shake(policy)
    return policy


def sample(
    task: AttentionTask, policy: AttentionModel, *, group: int = 400, proposal: Proposal = "policy", temperature: float = 1.0
) -> Rollouts:
    context = task.encode(policy, make_batch(task))
    generator = torch.Generator().manual_seed(0)
    return task.sample(policy, context, group, temperature=temperature, proposal=proposal, generator=generator)


def naive_logprobs(logits: Tensor, cells: Tensor, points: list[int], temperature: float) -> list[float]:
    """Take the points one after the other; a softmax over the cells that are left."""
    left = cells.clone()
    logprobs = []
    for point in points:
        z = (logits.double() / temperature).masked_fill(~left, -torch.inf)
        logprobs.append(float(z.log_softmax(0)[point]))
        left[point] = False
    return logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_equal_a_naive_loop(temperature: float):
    task = make_task()
    policy = make_policy(task)
    rollouts = sample(task, policy, group=3, temperature=temperature)
    context = task.encode(policy, make_batch(task))
    logits = policy.policy(context.features, context.texture)[0].detach()
    for p in range(4):
        for g in range(3):
            expected = naive_logprobs(logits[p], context.cells[p], rollouts.actions[p, g].tolist(), temperature)
            assert rollouts.logprobs[p, g].tolist() == pytest.approx(expected, abs=1e-5)


def test_points_are_distinct_and_in_the_region():
    examples = make_examples()
    examples.region[:, :, :16] = False
    task = make_task(examples)
    batch = task.make_batch(AttentionData(examples, None), np.arange(4))
    policy = make_policy(task)
    context = task.encode(policy, batch)
    for proposal in ("policy", "uniform"):
        generator = torch.Generator().manual_seed(0)
        actions = task.sample(policy, context, 50, temperature=1.0, proposal=proposal, generator=generator).actions
        assert bool(batch.cells.unsqueeze(1).expand(-1, 50, -1).gather(2, actions).all())
        assert bool(actions.sort(-1).values.diff(dim=-1).ne(0).all())


def test_reward_weights_come_from_the_parameters():
    task = make_task(reward={"class_weight": 0.3, "heatmap_weight": 0.7})
    batch = task.replicate(make_batch(task), 2)
    policy = make_policy(task)
    context = task.encode(policy, batch)
    rollouts = sample(task, policy, group=2)
    parts, rates = task.reward(batch, rollouts, task.decode(policy, context, rollouts, batch))
    assert rates == {"class": 0.3, "heatmap": 0.7}
    assert {name: tuple(part.shape) for name, part in parts.items()} == {"class": (4, 2), "heatmap": (4, 2)}


def test_glimpse_decoder_is_asked_along_the_bag():
    task = make_task()
    examples = make_examples()
    examples.bag[:] = False
    examples.bag[:, 8:16, 0:24] = True  # row 1 of the cells, columns 0 to 2; column 0 is partly outside the region
    batch = task.replicate(task.make_batch(AttentionData(examples, None), np.arange(3)), 2)
    policy = make_policy(task)
    context = task.encode(policy, batch)
    rollouts = sample(task, policy, group=2)
    first = Rollouts(*(x[:3] for x in vars(rollouts).values()))
    outcomes = task.decode(policy, context, first, batch)
    loss = task.supervised_loss(policy, context, batch, outcomes).detach()
    centres = torch.tensor([[0.125, 0.375], [0.375, 0.375], [0.625, 0.375]]).expand(3, 3, 2)
    involvement = policy.class_decoder.estimate_involvement(batch.images, centres, torch.ones(3, 3, dtype=torch.bool))
    expected = supervised_loss(batch, outcomes, task.supervised, glimpse_involvement=involvement).detach()
    torch.testing.assert_close(loss, expected)
    without = supervised_loss(batch, outcomes, task.supervised, glimpse_involvement=None).detach()
    assert float(expected - without) > 1e-2


def test_the_table_of_samples_names_its_points():
    task, data = make_task(), make_data()
    batch = make_batch(task, (5, 2))
    actions = torch.tensor([[[0, 6, 15], [1, 2, 3]], [[4, 5, 6], [7, 8, 9]]])
    table = task.tabulate(data, batch, Rollouts(actions, torch.zeros(2, 2, 3), torch.ones(2, 2, 3, dtype=torch.bool)))
    assert table[["core_id", "sample", "label"]].values.tolist() == [["c05", 0, 1], ["c05", 1, 1], ["c02", 0, 0], ["c02", 1, 0]]
    # Cell 6 is row 1, column 2 of 4.
    assert table.loc[0, ["x0", "y0", "x1", "y1", "x2", "y2"]].tolist() == [0.125, 0.125, 0.625, 0.375, 0.875, 0.875]


def test_the_fingerprint_follows_model_objective_and_data():
    data = make_data()
    other_split = make_examples()
    other_split.table.loc[0, "split"] = "val"
    prints = [
        make_task().fingerprint(data),
        make_task(points=2).fingerprint(data),
        make_task(reward={"heatmap_weight": 1.0}).fingerprint(data),
        make_task().fingerprint(make_data(make_examples(1))),
        make_task().fingerprint(make_data(other_split)),
    ]
    assert len({json.dumps(p, sort_keys=True) for p in prints}) == len(prints)
    assert make_task().fingerprint(data) == prints[0]


@torch.no_grad()
def test_reference_logits_are_those_of_each_row():
    task, data = make_task(), make_data()
    reference = make_policy(task)
    cached = task.with_reference(data, reference)
    assert cached.reference_logits.shape == (15, 16)
    rows = np.array([7, 0, 12])
    rollouts = Rollouts(*(x[:3] for x in vars(sample(task, reference, group=2)).values()))
    for temperature in (1.0, 0.7):
        direct = task.score_reference(reference, task.make_batch(data, rows), rollouts, temperature=temperature)
        from_cache = task.score_reference(task.build_policy(9), task.make_batch(cached, rows), rollouts, temperature=temperature)
        torch.testing.assert_close(from_cache.log_probs_full, direct.log_probs_full, atol=1e-5, rtol=0)
        torch.testing.assert_close(from_cache.logprobs, direct.logprobs, atol=1e-5, rtol=0)
        assert not torch.allclose(direct.log_probs_full[0], direct.log_probs_full[1], atol=1e-3)
