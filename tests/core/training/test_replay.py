import dataclasses
import itertools
import json
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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


def rows(buffer):
    return [stored.row for stored in buffer.groups]


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


def test_the_buffer_owns_what_it_holds():
    offered = group(1)
    graph = torch.ones(G, L, requires_grad=True) * 2
    buffer = ReplayBuffer(2, 2)
    buffer.add([offered, dataclasses.replace(group(2), behaviour_logprobs=graph)])
    want = offered.actions.clone()
    offered.actions.fill_(-1)
    assert torch.equal(buffer.groups[0].actions, want)
    assert not buffer.groups[1].behaviour_logprobs.requires_grad


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (group(7, signal=-0.1), "signal of a group must be finite and >= 0, got -0.1 for row 7"),
        (group(7, signal=math.nan), "got nan for row 7"),
        (group(7, signal=math.inf), "got inf for row 7"),
        (
            dataclasses.replace(group(7), is_valid=torch.ones(G, L + 1, dtype=torch.bool)),
            r"share one shape \[G, L\], got .*row 7",
        ),
        (group(7, shape=(G,)), r"share one shape \[G, L\], got \[\[2\], \[2\], \[2\]\] for row 7"),
    ],
)
def test_a_bad_group_is_refused_and_nothing_is_added(bad, message):
    buffer = ReplayBuffer(4, 2)
    with pytest.raises(ValueError, match=message):
        buffer.add([group(1), bad])
    assert len(buffer) == 0


@pytest.mark.parametrize(("step", "left"), [(5, [1, 2, 3]), (6, [2, 3]), (7, [3]), (8, [])])
def test_no_group_is_drawn_beyond_its_age(step, left):
    buffer = ReplayBuffer(8, 2)
    buffer.add([group(1, step=3, signal=99.0), group(2, step=4), group(3, step=5)])
    drawn = buffer.draw(8, step=step, generator=generator())
    assert sorted(stored.row for stored in drawn) == left
    assert rows(buffer) == left
    assert all(step - stored.step <= 2 for stored in drawn)


def test_draws_are_without_replacement_and_bounded_by_what_is_there():
    buffer = ReplayBuffer(8, 5)
    buffer.add([group(row) for row in range(6)])
    for seed in range(20):
        drawn = [stored.row for stored in buffer.draw(4, step=0, generator=generator(seed))]
        assert len(set(drawn)) == 4
    assert sorted(stored.row for stored in buffer.draw(99, step=0, generator=generator())) == list(range(6))
    assert buffer.draw(0, step=0, generator=generator()) == []
    assert ReplayBuffer(1, 1).draw(3, step=5, generator=generator()) == []


def test_the_probability_is_proportional_to_the_signal():
    signals, n = {1: 1.0, 2: 2.0, 3: 5.0}, 4000
    buffer = ReplayBuffer(3, 1)
    buffer.add([group(row, signal=signal) for row, signal in signals.items()])
    stream = generator(1)
    pairs = Counter(tuple(g.row for g in buffer.draw(2, step=0, generator=stream)) for _ in range(n))
    for first, second in itertools.permutations(signals, 2):
        # first with s / 8, then second with s / what is left: (1, 3) has 1/8 * 5/7.
        p = signals[first] / 8 * signals[second] / (8 - signals[first])
        assert abs(pairs[first, second] / n - p) < 4 * math.sqrt(p * (1 - p) / n)


def test_a_draw_depends_on_the_generator_alone():
    buffer = ReplayBuffer(16, 5)
    buffer.add([group(row, signal=1.0 + row) for row in range(16)])
    torch.manual_seed(0)
    first = [g.row for g in buffer.draw(5, step=0, generator=generator(3))]
    torch.manual_seed(1)
    assert [g.row for g in buffer.draw(5, step=0, generator=generator(3))] == first
    assert [g.row for g in buffer.draw(5, step=0, generator=generator(4))] != first


def rollouts(prompts=4, seed=0, dtype=torch.float32):
    stream = generator(seed)
    actions = torch.randint(0, 9, (prompts, G, L), generator=stream)
    logprobs = -torch.rand(prompts, G, L, generator=stream, dtype=dtype)
    return Rollouts(actions, logprobs, torch.rand(prompts, G, L, generator=stream) > 0.3)


def test_split_then_merge_puts_each_group_back():
    old, fresh = rollouts(seed=1), rollouts(seed=2)
    groups = split_groups(old, [40, 41, 42, 43], signal=torch.tensor([0.0, 1.0, 2.0, 3.0]), step=6, temperature=0.8)
    assert [(g.row, g.step, g.temperature, g.signal) for g in groups] == [(40 + i, 6, 0.8, float(i)) for i in range(4)]
    before = [x.clone() for x in vars(fresh).values()]
    merged = merge_groups(fresh, [groups[3], groups[1]], [0, 1])
    for name, parts in vars(merged).items():
        was, new = getattr(old, name), getattr(fresh, name)
        assert torch.equal(parts, torch.stack([was[3], was[1], new[2], new[3]]))
    assert all(torch.equal(a, b) for a, b in zip(before, vars(fresh).values(), strict=True))


@dataclasses.dataclass(frozen=True)
class Marked(Rollouts):
    """Rollouts of a task that says more about a decision, or does not."""

    marks: torch.Tensor | None = None


def marked(seed, *, marks=True):
    plain = rollouts(seed=seed)
    return Marked(**vars(plain), marks=plain.actions[..., None].to(torch.uint8) + 10 if marks else None)


def test_what_a_task_says_beside_the_three_tensors_goes_with_a_group():
    old, fresh, buffer = marked(1), marked(2), ReplayBuffer(4, 4)
    buffer.add(split_groups(old, [0, 1, 2, 3], signal=torch.ones(4), step=0, temperature=1.0))
    old.marks.zero_()
    again = ReplayBuffer(4, 4)
    again.load(round_trip(buffer.state()))
    merged = merge_groups(fresh, [again.groups[3]], [1])
    assert torch.equal(merged.marks[1], marked(1).marks[3])
    assert torch.equal(merged.marks[[0, 2, 3]], fresh.marks[[0, 2, 3]])
    assert merged.marks.dtype == torch.uint8


def test_groups_that_say_less_than_the_batch_are_refused():
    groups = split_groups(marked(1, marks=False), [0, 1, 2, 3], signal=torch.ones(4), step=0, temperature=1.0)
    with pytest.raises(ValueError, match=r"must hold the fields \['marks'\] of the fresh ones, got \[\] for row 2"):
        merge_groups(marked(2), [groups[2]], [0])
    assert merge_groups(marked(2, marks=False), [groups[2]], [0]).marks is None
    with pytest.raises(ValueError, match=r"must share one shape \[G, L\]"):
        ReplayBuffer(4, 4).add([dataclasses.replace(group(), more={"marks": torch.zeros(G + 1, L)})])


def test_merge_keeps_the_batch_where_nothing_is_replayed_and_its_dtype_where_something_is():
    fresh = rollouts(dtype=torch.float64)
    assert merge_groups(fresh, [], []) is fresh
    merged = merge_groups(fresh, [group(1)], [2])
    assert (merged.logprobs.dtype, merged.actions.dtype, merged.is_valid.dtype) == (torch.float64, torch.int64, torch.bool)
    assert torch.equal(merged.logprobs[2], group(1).behaviour_logprobs.double())


def test_weights_are_ratios_of_whole_samples():
    proximal = torch.tensor([[[-1.0, -2.0, -0.5], [-1.0, -1.0, -1.0]]], requires_grad=True)
    behaviour = torch.tensor([[[-1.5, -1.0, -9.0], [-3.0, -1.0, torch.nan]]])
    is_valid = torch.tensor([[[True, True, False], [True, True, False]]])
    # exp((-1 + 1.5) + (-2 + 1)) = exp(-0.5);  exp((-1 + 3) + 0) = exp(2) = 7.389...
    want = torch.tensor([[math.exp(-0.5), math.exp(2.0)]], dtype=torch.float64)
    found = importance_weights(proximal, behaviour, is_valid, cap=None)
    torch.testing.assert_close(found, want, rtol=1e-15, atol=0)
    assert not found.requires_grad
    want[0, 1] = 5.0
    torch.testing.assert_close(importance_weights(proximal, behaviour, is_valid, cap=5.0), want, rtol=1e-15, atol=0)


def test_an_action_that_is_no_longer_allowed_weighs_nothing_and_a_cap_holds_an_overflow():
    proximal = torch.tensor([[[-torch.inf], [0.0]]])
    behaviour = torch.tensor([[[-1.0], [-1000.0]]])
    is_valid = torch.ones(1, 2, 1, dtype=torch.bool)
    assert importance_weights(proximal, behaviour, is_valid, cap=2.0).tolist() == [[0.0, 2.0]]
    assert importance_weights(proximal, behaviour, is_valid, cap=None).tolist() == [[0.0, pytest.approx(math.exp(20.0))]]


def weigh(proximal, behaviour, *, cap=2.0):
    return importance_weights(proximal, behaviour, torch.ones_like(proximal, dtype=torch.bool), cap=cap)


def split(rows, signal):
    return split_groups(rollouts(), rows, signal=signal, step=0, temperature=1.0)


def stale():
    buffer = ReplayBuffer(4, 2)
    buffer.add([group(1, step=9)])
    return buffer


X = torch.zeros(2, 2, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ReplayBuffer(0, 1), "capacity of the replay must be at least 1, got 0"),
        (lambda: ReplayBuffer(1, 0), "max_age_steps of the replay must be at least 1, got 0"),
        (lambda: stale().draw(1, step=8, generator=generator()), "step must not lie before the stored groups, got 8 after 9"),
        (lambda: stale().draw(-1, step=9, generator=generator()), "number of groups to replay must be at least 0, got -1"),
        (lambda: merge_groups(rollouts(), [group(1)], [0, 1]), r"positions must be 1 distinct prompts of 0..3, got \[0, 1\]"),
        (lambda: merge_groups(rollouts(), [group(1), group(2)], [2, 2]), r"must be 2 distinct prompts of 0..3, got \[2, 2\]"),
        (lambda: merge_groups(rollouts(), [group(1)], [4]), r"distinct prompts of 0..3, got \[4\]"),
        (lambda: merge_groups(rollouts(), [group(1)], [-1]), r"distinct prompts of 0..3, got \[-1\]"),
        (lambda: merge_groups(rollouts(), [group(1, shape=(2, 4))], [0]), r"= \[2, 3\] of the batch, got \[2, 4\] for row 1"),
        (lambda: split([1, 2, 3], torch.ones(4)), r"one entry for each of 4 prompts, got 3 and \[4\]"),
        (lambda: split([1, 2, 3, 4], torch.ones(2)), r"one entry for each of 4 prompts, got 4 and \[2\]"),
        (lambda: weigh(X, X.index_fill(0, torch.tensor(1), math.nan)), "for prompt 1, sample 0"),
        (lambda: weigh(X, X.index_fill(0, torch.tensor(1), -math.inf)), "for prompt 1, sample 0"),
        (lambda: weigh(X, X[:1]), r"share one shape \[P, G, L\], got"),
        (lambda: weigh(X[0], X[0]), r"share one shape \[P, G, L\], got"),
        (lambda: weigh(X, X, cap=0.99), "cap of importance weights must be at least 1, got 0.99"),
        (lambda: weigh(X, X, cap=math.nan), "cap of importance weights must be at least 1, got nan"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Unbiasedness, by enumeration. A sample is one choice of three, and, unless that was 0, a second one: 7 outcomes.
