"""An audit has one start."""

from dataclasses import replace
from functools import partial

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
    task, rows, drawn = kit.make_task(), np.array([0, 1, 2]), []
    data = kit.make_data(task) if kit is tiny_talk else kit.make_data()
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
    before = len(drawn)
    for some, seed, samples in ((rows, 4, 2), (rows, 3, 3), (rows[:2], 3, 2)):  # each is another question
        task.evaluate(arms[0], data, some, seed=seed, n_samples=samples)
    assert len(drawn) == before + 6
    # A task with another start, as in a grid of seeds, keeps nothing of the first.
    second = replace(task, start=weights_of(arms[0], {})).evaluate(arms[0], data, rows, seed=3, n_samples=2)
    policy, start = (second[second["rule"] == rule].drop(columns="rule").reset_index(drop=True) for rule in ("policy", "start"))
    pd.testing.assert_frame_equal(policy, start)
    assert not second[second["rule"] == "start"].equals(tables[0][tables[0]["rule"] == "start"])


def test_exactly_one_audited_policy_is_the_start():
    plan = partial(AuditPlan, "core_id", "patient_id", weights={"f1": 1.0}, metrics={"f1": "higher"})
    assert plan({"uniform": "trivial", "policy": "start", "oracle": "ceiling"}).start == "policy"
    for policies in ({"uniform": "trivial"}, {"a": "start", "b": "start"}):
        with pytest.raises(ValueError, match="exactly one audited policy must have the role start"):
            plan(policies)
