"""An audit has one start."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny_chemist
import tiny_talk

from grpo_pipeline.core.storage.weights import weights_of
from grpo_pipeline.tasks.defaults import AuditPlan
from grpo_pipeline.tasks.shared import Cache


def test_a_value_is_computed_once_for_each_data_set_and_key():
    kept, calls = Cache(), []

    def compute():
        calls.append(len(calls))
        return calls[-1]

    first, second = {}, {}
    assert [kept.take(first, "a", compute), kept.take(first, "a", compute), kept.take(first, "b", compute)] == [0, 0, 1]
    assert [kept.take(second, "a", compute), kept.take(first, "a", compute)] == [2, 0]
    assert calls == [0, 1, 2]


@pytest.mark.parametrize("kit", [tiny_talk, tiny_chemist])
def test_the_start_is_asked_once_and_rows_stay_what_they_are(kit, monkeypatch):
    """Two arms and then two others in the other order: the start draws for the first arm only, and no row depends on that."""
    task = kit.make_task()
    data = kit.make_data(task) if kit is tiny_talk else kit.make_data()
    rows, drawn = np.array([0, 1, 2]), []
    sample = type(task).sample

    def watched(self, policy, *args, **named):
        drawn.append(policy)
        return sample(self, policy, *args, **named)

    monkeypatch.setattr(type(task), "sample", watched)
    arms = [task.build_policy(seed) for seed in (5, 6)]
    tables = [task.evaluate(arm, data, rows, seed=3, n_samples=2) for arm in arms]
    assert len({id(policy) for policy in drawn}) == 3
    fresh = kit.make_task()
    for arm, table in zip(arms[::-1], tables[::-1], strict=True):
        pd.testing.assert_frame_equal(fresh.evaluate(arm, data, rows, seed=3, n_samples=2), table)
    # Another seed, number of samples or choice of prompts is another question.
    before = len(drawn)
    for changed in ({"seed": 4}, {"n_samples": 3}):
        task.evaluate(arms[0], data, rows, **({"seed": 3, "n_samples": 2} | changed))
    task.evaluate(arms[0], data, rows[:2], seed=3, n_samples=2)
    assert len(drawn) == before + 6


@pytest.mark.parametrize("kit", [tiny_talk, tiny_chemist])
def test_a_task_with_another_start_keeps_nothing_of_the_first(kit):
    """As in a grid of seeds: data, rows and the seed of the evaluation are the same, the start is not."""
    task = kit.make_task()
    data = kit.make_data(task) if kit is tiny_talk else kit.make_data()
    arm, rows = task.build_policy(5), np.array([0, 1, 2])
    first = task.evaluate(arm, data, rows, seed=3, n_samples=2)
    other = replace(task, start=weights_of(arm, {}))
    second = other.evaluate(arm, data, rows, seed=3, n_samples=2)
    policy, start = (second[second["rule"] == rule].drop(columns="rule").reset_index(drop=True) for rule in ("policy", "start"))
    pd.testing.assert_frame_equal(policy, start)
    assert not second[second["rule"] == "start"].equals(first[first["rule"] == "start"])


def plan(**policies):
    return AuditPlan("core_id", "patient_id", policies, weights={"f1": 1.0}, metrics={"f1": "higher"})


def test_the_start_is_found_by_its_role():
    assert plan(uniform="trivial", policy="start", oracle="ceiling").start == "policy"


@pytest.mark.parametrize("policies", [{"uniform": "trivial"}, {"a": "start", "b": "start"}])
def test_none_or_two_starts_are_refused(policies):
    with pytest.raises(ValueError, match="exactly one audited policy must have the role start"):
        plan(**policies)
