import copy
import dataclasses
import json

import pytest
import torch
from refusals import refuses
from safetensors.torch import load, save
from tiny_replay import group, rollouts, split

from grpo_pipeline.core.training.replay_buffer import ReplayBuffer, ReplayState
from grpo_pipeline.core.training.stored_groups import merge_groups


def round_trip(state):
    """As a checkpoint does it: safetensors and JSON."""
    return ReplayState(load(save(dict(state.tensors))), json.loads(json.dumps(state.scalars)))


@pytest.mark.parametrize("marks", [True, False])
def test_groups_that_are_split_stored_and_merged_come_back_as_they_were(marks):
    """The buffer owns what it holds: what it was given is zeroed meanwhile."""
    old, fresh = rollouts(seed=1, marks=marks), rollouts(2, torch.float64, marks)
    graph = dataclasses.replace(old, logprobs=old.logprobs.clone().requires_grad_() * 1)
    groups = split(graph)
    assert [(g.row, g.step, g.temperature, g.signal) for g in groups] == [
        (40 + i, 6, 0.8, signal) for i, signal in enumerate((0.5, 1.0, 2.0, 3.0))
    ]
    buffer, again = ReplayBuffer(4, 4), ReplayBuffer(4, 4)
    buffer.add(groups)
    assert not any(stored.behaviour_logprobs.requires_grad for stored in buffer.groups)
    for tensor in vars(graph).values():
        if tensor is not None:
            tensor.detach().zero_()
    again.load(round_trip(buffer.state()))
    before = copy.deepcopy(fresh)
    by_row = {g.row: g for g in again.groups}
    merged = merge_groups(fresh, [by_row[43], by_row[41]], [0, 1])
    old = rollouts(seed=1, marks=marks)
    for name, parts in vars(merged).items():
        was, new = getattr(old, name), getattr(fresh, name)
        assert (parts is None) is (new is None)
        if parts is not None:
            assert parts.dtype == new.dtype
            assert not parts.requires_grad
            assert torch.equal(parts, torch.stack([was[3].to(new.dtype), was[1].to(new.dtype), new[2], new[3]]))
            assert torch.equal(new, getattr(before, name))
    assert merge_groups(fresh, [], []) is fresh


def merge(groups, positions, **fresh):
    return merge_groups(rollouts(**fresh), groups, positions)


test_refuses = refuses(
    (lambda: merge([group(1)], [0, 1]), r"positions must be 1 distinct prompts of 0..3, got \[0, 1\]"),
    (lambda: merge([group(1), group(2)], [2, 2]), r"must be 2 distinct prompts of 0..3, got \[2, 2\]"),
    (lambda: merge([group(1)], [4]), r"distinct prompts of 0..3, got \[4\]"),
    (lambda: merge([group(1)], [-1]), r"distinct prompts of 0..3, got \[-1\]"),
    (lambda: merge([group(1, shape=(2, 4))], [0], marks=False), r"= \[2, 3\] of the batch, got \[2, 4\] for row 1"),
    (lambda: merge([group(2)], [0]), r"must hold the fields \['marks'\] of the fresh ones, got \[\] for row 2"),
    (lambda: split(rollouts(), rows=[1, 2, 3]), r"one entry for each of 4 prompts, got 3 and \[4\]"),
    (lambda: split(rollouts(), signal=[1.0, 1.0]), r"one entry for each of 4 prompts, got 4 and \[2\]"),
)
