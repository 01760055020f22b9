import copy
import dataclasses
import itertools
import json
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from safetensors.torch import load, save

from grpo_pipeline.core.training.replay import (
    ReplayBuffer,
    ReplayState,
    StoredGroup,
    importance_weights,
    merge_groups,
    split_groups,
)
from grpo_pipeline.core.types import Rollouts

G, L = 2, 3


def group(row=0, *, step=0, signal=1.0, shape=(G, L), dtype=torch.float32):
    actions = torch.arange(math.prod(shape)).reshape(shape) + 100 * row
    logprobs = -torch.linspace(0.1, 1.7, math.prod(shape), dtype=dtype).reshape(shape) - row
    return StoredGroup(row, actions, logprobs, actions % 3 != 2, step=step, temperature=0.7 + row / 3, signal=signal)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def round_trip(state):
    """As a checkpoint does it: safetensors and JSON."""
    return ReplayState(load(save(dict(state.tensors))), json.loads(json.dumps(state.scalars)))


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 0.5, 1.0, 2.5])), max_size=5), max_size=6),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_the_content_is_that_of_a_naive_store(batches, capacity, max_age):
    buffer, naive, step, number = ReplayBuffer(capacity, max_age), [], 0, 0
    for batch in batches:
        offered = []
        for gap, signal in batch:
            step, number = step + gap, number + 1
            offered.append(group(number, step=step, signal=signal))
            if signal > 0:
                naive.append((signal, step, number))
        buffer.add(offered)
        newest = max((entry[1] for entry in naive), default=0)
        naive = [entry for entry in naive if newest - entry[1] <= max_age]
        while len(naive) > capacity:
            naive.remove(min(naive))
        assert [(g.signal, g.step, g.row) for g in buffer.groups] == naive
        assert len(buffer) == len(naive) <= capacity


def with_fields(**fields):
    return dataclasses.replace(group(7), **fields)


def add_beside_another(bad):
    buffer = ReplayBuffer(4, 2)
    try:
        buffer.add([group(1), bad])
    finally:
        assert len(buffer) == 0


test_a_bad_group_is_refused_and_nothing_is_added = refuses(
    *((with_fields(signal=x), f"must be finite and >= 0, got {x} for row 7") for x in (-0.1, math.nan, math.inf)),
    (with_fields(is_valid=torch.ones(G, L + 1, dtype=torch.bool)), r"share one shape \[G, L\], got .*row 7"),
    (group(7, shape=(G,)), r"share one shape \[G, L\], got \[\[2\], \[2\], \[2\]\] for row 7"),
    (with_fields(more={"marks": torch.zeros(G + 1, L)}), r"must share one shape \[G, L\]"),
    by=add_beside_another,
)


@pytest.mark.parametrize(("step", "left"), [(5, [1, 2, 3]), (6, [2, 3]), (7, [3]), (8, [])])
def test_what_is_there_is_drawn_once_and_not_beyond_its_age(step, left):
    buffer = ReplayBuffer(8, 2)
    buffer.add([group(1, step=3, signal=99.0), group(2, step=4), group(3, step=5)])
    assert buffer.draw(0, step=5, generator=generator()) == []
    assert sorted(stored.row for stored in buffer.draw(8, step=step, generator=generator())) == left
    assert [stored.row for stored in buffer.groups] == left


def test_the_probability_is_proportional_to_the_signal_and_depends_on_the_generator_alone():
    signals, n = {1: 1.0, 2: 2.0, 3: 5.0}, 4000
    buffer = ReplayBuffer(3, 1)
    buffer.add([group(row, signal=signal) for row, signal in signals.items()])

    def draw(seed):
        stream = generator(seed)
        return [tuple(g.row for g in buffer.draw(2, step=0, generator=stream)) for _ in range(n)]

    pairs = Counter(draws := draw(1))
    for first, second in itertools.permutations(signals, 2):
        # first with s / 8, then second with s / what is left: (1, 3) has 1/8 * 5/7.
        p = signals[first] / 8 * signals[second] / (8 - signals[first])
        assert abs(pairs[first, second] / n - p) < 4 * math.sqrt(p * (1 - p) / n)
    torch.manual_seed(1)
    assert draw(1) == draws != draw(2)


@dataclasses.dataclass(frozen=True)
class Marked(Rollouts):
    """Rollouts of a task that says more about a decision, or does not."""

    marks: torch.Tensor | None = None


def rollouts(seed=0, dtype=torch.float32, marks=True):
    stream = generator(seed)
    actions = torch.randint(0, 9, (4, G, L), generator=stream)
    logprobs = -torch.rand(4, G, L, generator=stream, dtype=dtype)
    more = actions[..., None].to(torch.uint8) + 10 if marks else None
    return Marked(actions, logprobs, torch.rand(4, G, L, generator=stream) > 0.3, marks=more)


def split(old, rows=(40, 41, 42, 43), signal=(0.5, 1.0, 2.0, 3.0)):
    return split_groups(old, rows, signal=torch.tensor(signal), step=6, temperature=0.8)


@pytest.mark.parametrize("marks", [True, False])
def test_split_stored_and_merged_each_group_comes_back_and_the_buffer_owns_what_it_holds(marks):
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


def test_a_saved_state_shares_no_memory_with_a_buffer():
    buffer, again = ReplayBuffer(4, 4), ReplayBuffer(4, 4)
    buffer.add(split(rollouts()))
    saved = buffer.state()
    before = copy.deepcopy(saved)
    again.load(saved)
    for stored in (*buffer.groups, *again.groups):
        for tensor in (stored.actions, stored.behaviour_logprobs, stored.is_valid, *stored.more.values()):
            tensor.zero_()
    assert saved.tensors.keys() == before.tensors.keys()
    assert len(saved.tensors) == 4 * 4
    assert all(torch.equal(tensor, before.tensors[name]) for name, tensor in saved.tensors.items())


def test_weights_are_ratios_of_whole_samples_held_by_the_cap():
    inf, nan = torch.inf, torch.nan
    proximal = torch.tensor([[[-1.0, -2.0, -0.5], [-1.0, -1.0, -1.0], [-inf, 0.0, 0.0], [0.0] * 3]], requires_grad=True)
    behaviour = torch.tensor([[[-1.5, -1.0, -9.0], [-3.0, -1.0, nan], [-1.0, 0.0, nan], [-1000.0, 0.0, nan]]])
    is_valid = torch.tensor([True, True, False]).expand(1, 4, 3)
    # exp((-1 + 1.5) + (-2 + 1)) = exp(-0.5);  exp((-1 + 3) + 0) = exp(2);  no longer allowed: 0;  exp(1000) is held at exp(20)
    want = torch.tensor([[-0.5, 2.0, -inf, 20.0]], dtype=torch.float64).exp()
    for cap in (None, 5.0):
        found = importance_weights(proximal, behaviour, is_valid, cap=cap)
        torch.testing.assert_close(found, want.clamp(max=cap or inf), rtol=1e-15, atol=0)
        assert not found.requires_grad


def weigh(proximal, behaviour, *, cap=2.0):
    return importance_weights(proximal, behaviour, torch.ones_like(proximal, dtype=torch.bool), cap=cap)


def stale():
    buffer = ReplayBuffer(4, 2)
    buffer.add([group(1, step=9)])
    return buffer


X = torch.zeros(2, 2, 1)


def merge(groups, positions, **fresh):
    return merge_groups(rollouts(**fresh), groups, positions)


test_refuses = refuses(
    (lambda: ReplayBuffer(0, 1), "capacity of the replay must be at least 1, got 0"),
    (lambda: ReplayBuffer(1, 0), "max_age_steps of the replay must be at least 1, got 0"),
    (lambda: stale().draw(1, step=8, generator=generator()), "step must not lie before the stored groups, got 8 after 9"),
    (lambda: stale().draw(-1, step=9, generator=generator()), "number of groups to replay must be at least 0, got -1"),
    (lambda: merge([group(1)], [0, 1]), r"positions must be 1 distinct prompts of 0..3, got \[0, 1\]"),
    (lambda: merge([group(1), group(2)], [2, 2]), r"must be 2 distinct prompts of 0..3, got \[2, 2\]"),
    (lambda: merge([group(1)], [4]), r"distinct prompts of 0..3, got \[4\]"),
    (lambda: merge([group(1)], [-1]), r"distinct prompts of 0..3, got \[-1\]"),
    (lambda: merge([group(1, shape=(2, 4))], [0], marks=False), r"= \[2, 3\] of the batch, got \[2, 4\] for row 1"),
    (lambda: merge([group(2)], [0]), r"must hold the fields \['marks'\] of the fresh ones, got \[\] for row 2"),
    (lambda: split(rollouts(), rows=[1, 2, 3]), r"one entry for each of 4 prompts, got 3 and \[4\]"),
    (lambda: split(rollouts(), signal=[1.0, 1.0]), r"one entry for each of 4 prompts, got 4 and \[2\]"),
    (lambda: weigh(X, X.index_fill(0, torch.tensor(1), math.nan)), "for prompt 1, sample 0"),
    (lambda: weigh(X, X.index_fill(0, torch.tensor(1), -math.inf)), "for prompt 1, sample 0"),
    (lambda: weigh(X, X[:1]), r"share one shape \[P, G, L\], got"),
    (lambda: weigh(X[0], X[0]), r"share one shape \[P, G, L\], got"),
    (lambda: weigh(X, X, cap=0.99), "cap of importance weights must be at least 1, got 0.99"),
    (lambda: weigh(X, X, cap=math.nan), "cap of importance weights must be at least 1, got nan"),
)
