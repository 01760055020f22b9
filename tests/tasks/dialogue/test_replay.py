"""Stored groups of replies whose tokens were cut off by top-k and top-p: scored under the distribution of their draw."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_talk as tiny
import torch
from safetensors.torch import load, save

from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.core.training.replay_buffer import ReplayBuffer, ReplayState
from grpo_pipeline.core.training.stored_groups import merge_groups, split_groups
from grpo_pipeline.pipelines.training import nodes
from grpo_pipeline.pipelines.training.start import build_state

ROWS = np.arange(4)
REPLAY = {"capacity": 16, "max_age_steps": 8, "share": 0.5, "importance_cap": 2.0}
DISTINCT = {"own": {"distinct": {"function": "tiny_rewards:distinct", "weight": 1.0}}}


def stored_groups(rollouts):
    """Put a batch into a buffer, through a checkpoint and back; returns the groups in the order of their rows."""
    buffer, other = ReplayBuffer(8, 4), ReplayBuffer(8, 4)
    buffer.add(split_groups(rollouts, ROWS.tolist(), signal=torch.ones(4), step=0, temperature=1.0))
    state = buffer.state()
    other.load(ReplayState(load(save(dict(state.tensors))), state.scalars))
    return other.groups


@pytest.mark.parametrize("replies", [{"top_p": 0.8}, {"top_k": 12}, {}])
def test_a_replayed_reply_has_the_log_probabilities_of_its_draw_at_the_same_policy(replies) -> None:
    task = tiny.make_task(replies=replies)
    policy, batch = task.build_policy(0), task.make_batch(tiny.make_data(task), ROWS)
    context = task.encode(policy, batch)
    old, fresh = (
        task.sample(policy, context, 3, temperature=1.0, proposal="policy", generator=torch.Generator().manual_seed(seed))
        for seed in (1, 2)
    )
    groups = stored_groups(old)
    merged = merge_groups(fresh, [groups[2], groups[0]], [2, 0])
    assert torch.equal(merged.actions, torch.stack([old.actions[0], fresh.actions[1], old.actions[2], fresh.actions[3]]))
    scored = task.score(policy, context, merged, temperature=1.0).logprobs.detach()
    # float32: a cache adds up in another order than a whole reply
    torch.testing.assert_close(scored, merged.logprobs, atol=1e-4, rtol=0)
    if replies:
        without = task.score(policy, context, replace(merged, kept=fresh.kept), temperature=1.0).logprobs.detach()
        assert not torch.allclose(without[[0, 2]], merged.logprobs[[0, 2]], atol=1e-2)


def run(task, algorithm, *, resume="never", start=None):
    """Train four steps; returns (train rows, checkpoints)."""
    training = tiny.training_params(epochs=4, checkpoint_every_steps=1, validate_every_epochs=4)
    data = tiny.make_data(task)
    state = build_state(algorithm, training, 0, task, data)
    found = [*nodes.train(algorithm, training, resume, task, data, state, start or NoCheckpoint("none"), {})]
    rows = [row for part, _ in found for row in part if row["split"] == "train"]
    return rows, [checkpoint for _, checkpoint in found if checkpoint is not False]


def test_an_arm_replays_groups_and_goes_on_with_the_same_ones() -> None:
    task = tiny.make_task(replies={"top_p": 0.9}, reward=DISTINCT)
    algorithm = tiny.algorithm_params(replay=REPLAY)
    rows, checkpoints = run(task, algorithm)
    assert [row.get("replay/groups") for row in rows] == [None, 4.0, 4.0, 4.0]
    assert all(0 < row["replay/importance_mean"] <= 2 for row in rows[1:])
    assert all(row["policy/ratio_first"] == pytest.approx(1.0, abs=1e-4) for row in rows)
    _, again = run(task, algorithm, resume="auto", start=checkpoints[1])
    assert all(torch.equal(again[-1].policy[name], tensor) for name, tensor in checkpoints[-1].policy.items())
