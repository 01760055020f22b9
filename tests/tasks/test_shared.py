"""Dialogue and molecules alike: a start that is asked once, and arms without samples."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import tiny_chemist
import tiny_talk
import torch
from tiny_attention import gather

from grpo_pipeline.core.storage.weights import weights_of
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.tasks.audit_plan import AuditPlan
from grpo_pipeline.tasks.dialogue.build import start_from as start_dialogue
from grpo_pipeline.tasks.molecules.build import start_from as start_molecules


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


@pytest.mark.parametrize(("kit", "start_from"), [(tiny_talk, start_dialogue), (tiny_chemist, start_molecules)])
def test_every_policy_of_a_started_task_begins_with_the_start(kit, start_from):
    task, data, start = kit.make_task(), kit.make_data(), weights_of(kit.make_task().build_policy(5), {})
    started, again = start_from(task, start), start_from(task, replace(start, config={"another": "header"}))
    for one, seed, is_start in ((started, 0, True), (started, 1, True), (task, 0, False)):
        weights = one.build_policy(seed).state_dict()
        assert all(torch.equal(weights[name], part) for name, part in start.tensors.items()) == is_start
    assert started.pool is task.pool
    assert started.fingerprint(data) == again.fingerprint(data) != task.fingerprint(data)


@pytest.mark.parametrize("kit", [tiny_talk, tiny_chemist])
def test_an_arm_without_samples_has_no_reward_and_its_metrics_are_absent(kit):
    task, data, algorithm = kit.make_task(), kit.make_data(), kit.algorithm_params("supervised")
    training = kit.training_params(gradient_report_every_steps=1, group_size=3)
    state, batch = build_state(algorithm, training, 0, task, data), task.make_batch(data, np.arange(4))
    of_data = task.pool.counts.measured  # right answers are tried before any training
    experience = gather(algorithm, training, task, state, batch)
    rollouts, rewards = experience.rollouts, experience.rewards
    assert rollouts.actions.shape == (4, 3, 0)
    assert all(part.isnan().all() and part.shape == (4, 3) for part in (rewards.total, *rewards.components.values()))
    assert len(task.tabulate(data, experience.batch, rollouts)) == 12
    _, metrics = StepRunner(task, algorithm, training)(state, batch)
    assert np.isnan(metrics.pop("reward/mean"))
    assert [name for name, value in metrics.items() if not np.isfinite(value)] == []
    assert [name for name in metrics if name.startswith(("reward/", "dead/reward", "advantage/"))] == []
    assert metrics["supervised/loss"] > 0
    assert task.pool.counts.measured == of_data


def test_exactly_one_audited_policy_is_the_start():
    plan = partial(AuditPlan, "core_id", "patient_id", weights={"f1": 1.0}, metrics={"f1": "higher"})
    assert plan({"uniform": "trivial", "policy": "start", "oracle": "ceiling"}).start == "policy"
    for policies in ({"uniform": "trivial"}, {"a": "start", "b": "start"}):
        with pytest.raises(ValueError, match="exactly one audited policy must have the role start"):
            plan(policies)
