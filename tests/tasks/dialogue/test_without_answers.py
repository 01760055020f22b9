"""Prompts without right answers: rewards that read none teach, and what compares with answers is absent and not 0."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tiny_talk as tiny
import torch
from tiny_replies import evaluation_params

from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.pipelines.reward_audit.samples import read_samples
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.rewards.group_rewards import RewardFailedError
from grpo_pipeline.tasks.dialogue.build import tokenise
from grpo_pipeline.tasks.dialogue.data.examples import content_digest, question_and_answer
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.evaluation.audit import METRICS
from grpo_pipeline.tasks.dialogue.pipelines.reply_groups import reply_groups
from grpo_pipeline.tasks.dialogue.task import DialogueTask

NONE = {"f1": None, "rouge_l": None, "bleu": None}
OWN = {"own": {"levels": {"function": "tiny_rewards:lengths_of_both", "weight": 1.0}}}
COMPARED = {"f1", "rouge_1", "rouge_2", "rouge_l", "bleu", "perplexity", "reward_f1"}


def data_of(task: DialogueTask) -> DialogueData:
    examples = tiny.make_examples()
    table = examples.table.assign(answers=[[] for _ in range(len(examples.table))])
    return tokenise(task, replace(examples, table=table, digest=content_digest(table)))[0]


@pytest.fixture(scope="module")
def task() -> DialogueTask:
    return tiny.make_task(reward=NONE | OWN)


@pytest.fixture(scope="module")
def data(task: DialogueTask) -> DialogueData:
    return data_of(task)


def test_replies_are_drawn_and_paid_and_shown(task: DialogueTask, data: DialogueData) -> None:
    task.check_data(data)
    batch, policy = task.make_batch(data, np.array([0, 1])), task.build_policy(0)
    context = task.encode(policy, batch)
    generator = torch.Generator().manual_seed(0)
    rollouts = task.sample(policy, context, 3, temperature=1.0, proposal="policy", generator=generator)
    parts, _ = task.reward(batch, rollouts, task.decode(policy, context, rollouts, batch))
    assert parts["levels"].shape == (2, 3)
    assert not parts["levels"].isnan().any()
    table = task.tabulate(data, batch, rollouts).assign(reward_levels=1.0, reward=1.0, advantage=0.0, answer=np.nan)
    assert "right reply" not in reply_groups(table, limit=1)[0].replies.caption
    assert set(question_and_answer(data.examples, np.array([0]))["answer"]) == {""}
    assert task.showcase(policy, data, np.array([0]), seed=0)["answer"].tolist() == [""]


def test_the_supervised_loss_names_the_row_and_what_to_do(task: DialogueTask, data: DialogueData) -> None:
    batch, policy = task.make_batch(data, np.array([3])), task.build_policy(0)
    assert batch.reference is None
    assert task.supervised_counts(batch).tolist() == [0]
    with pytest.raises(ValueError, match=r"got none of row 3; name the column in dialogue.data.source.answers, or take losses"):
        task.supervised_loss(policy, task.encode(policy, batch), batch, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("term", ["f1", "rouge_l", "bleu", "exact_match", "number"])
def test_a_term_that_reads_answers_is_refused(term: str) -> None:
    task = tiny.make_task(reward=NONE | OWN | {term: {"weight": 1.0}})
    message = rf"reward '{term}' must have a right answer of every example, got none of 'e00'; .* dialogue.reward.{term}: null"
    with pytest.raises(RewardFailedError, match=message):
        task.check_data(data_of(task))


def test_scores_of_answers_are_absent_from_validation_evaluation_and_comparison(task: DialogueTask, data: DialogueData) -> None:
    policy, rows = task.build_policy(1), task.rows(data, "test")
    assert "reference/perplexity" not in task.validate(policy, data, rows, seed=0, n_samples=2)
    table = task.evaluate(policy, data, rows, seed=0, n_samples=2)
    assert COMPARED.isdisjoint(table.columns)
    assert set(table["rule"]) == {"policy", "greedy", "start", "constant", "top_words", "copy_last_turn", "copy_persona"}
    document = compare_arms(evaluation_params(), "abc", supervised=table, grpo=table)
    json.dumps(document, allow_nan=False)
    assert COMPARED.isdisjoint(document["arms"]["grpo"]["metrics"])
    assert document["headline"] == ["reward", "distinct_2", "length"]
    assert list(document["bar"]["grpo"]) == ["reward"]


def test_data_are_checked_where_a_task_begins_without_a_stage(data: DialogueData) -> None:
    task = tiny.make_task(reward=NONE | {"number": {"weight": 1.0}})
    with pytest.raises(RewardFailedError, match="reward 'number' must have a right answer"):
        build_state(tiny.algorithm_params("grpo"), tiny.training_params(), 0, task, data)


def test_a_pattern_alone_is_verifiable_without_answers() -> None:
    task = tiny.make_task(reward=NONE | {"pattern": {"weight": 1.0, "regex": ".*"}})
    data = data_of(task)
    task.check_data(data)
    table = task.evaluate(task.build_policy(0), data, task.rows(data, "test"), seed=0, n_samples=2)
    document = compare_arms(evaluation_params(), "abc", supervised=table, grpo=table)
    assert document["headline"] == ["accuracy", "pass_at_2", "reward"]
    assert document["arms"]["grpo"]["metrics"]["accuracy"]["value"] > 0
    assert COMPARED.isdisjoint(document["arms"]["grpo"]["metrics"])


def test_an_audit_has_no_ceiling(task: DialogueTask, data: DialogueData) -> None:
    found = task.audit(task.build_policy(0), data, task.rows(data, "val"), seed=0, n_samples=2)
    samples = read_samples(found, task.audit_plan)
    assert list(samples.policies) == ["start", "constant", "top_words", "copy_last_turn", "copy_persona"]
    assert found[[name for name in METRICS if name != "length"]].isna().all(axis=None)
    assert pd.api.types.is_numeric_dtype(found["length"])
