import copy
import dataclasses
import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from tiny_replay import G, L, generator, group, rollouts, split

from grpo_pipeline.core.training.replay_buffer import ReplayBuffer


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


def test_a_group_is_drawn_in_proportion_to_its_signal_and_by_the_generator_alone():
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


def stale():
    buffer = ReplayBuffer(4, 2)
    buffer.add([group(1, step=9)])
    return buffer


test_refuses = refuses(
    (lambda: ReplayBuffer(0, 1), "capacity of the replay must be at least 1, got 0"),
    (lambda: ReplayBuffer(1, 0), "max_age_steps of the replay must be at least 1, got 0"),
    (lambda: stale().draw(1, step=8, generator=generator()), "step must not lie before the stored groups, got 8 after 9"),
    (lambda: stale().draw(-1, step=9, generator=generator()), "number of groups to replay must be at least 0, got -1"),
)
