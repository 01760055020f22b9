"""The replies that an audit scores, and that they are scored as in training and in the evaluation."""

import numpy as np
import pandas as pd
from tiny_attention import shake
from tiny_talk import make_data, make_examples, make_task

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.dialogue.data.hidden_characters import printable
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.evaluation import audit
from grpo_pipeline.tasks.dialogue.evaluation.audit import METRICS, ROLES
from grpo_pipeline.tasks.dialogue.scores.f1 import f1
from grpo_pipeline.tasks.dialogue.task import DialogueTask

ROWS, SETS = np.arange(8), 3
SCRIPTED = {"own": {"scripted": {"function": "tiny_rewards:scripted", "weight": 2.0}}}
TABLE = make_examples().table.set_index("example_id")


def scored(*, rows=ROWS, data=None, seed=3, **sections):
    task = make_task(**sections)
    policy = task.build_policy(0)
    shake(policy, seed=1)
    return task.audit(policy, data or make_data(), rows, seed=seed, n_samples=SETS), task, policy


def one(rows, policy):
    return rows[rows["policy"] == policy].set_index("example_id")


def test_rules_are_scored_as_predictions_are_and_the_start_is_paid_as_in_training():
    rows, task, policy = scored(reward=SCRIPTED)
    predictions = task.evaluate(policy, make_data(), ROWS, seed=0, n_samples=2).rename(columns={"rule": "policy"})
    names = [*METRICS, "reward", "reward_f1", "reward_rouge_l", "reward_bleu", "reward_scripted", "reply"]
    for rule in set(ROLES) - {"start"}:
        found, expected = (one(frame, rule).sort_index()[names] for frame in (rows, predictions))
        pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    start = rows[rows["policy"] == "start"]
    assert start["example_id"].tolist() == [name for name in TABLE.index[:8] for _ in range(SETS)]
    assert start["sample"].tolist() == [0, 1, 2] * 8
    batch = task.make_batch(make_data(), ROWS)
    context = task.encode(policy, batch)
    generator = step_generator(3, 0, stream=Stream.AUDIT, device="cpu")
    drawn = task.sample(policy, context, SETS, temperature=1.0, proposal="policy", generator=generator)
    parts, weights = task.reward(task.replicate(batch, SETS), drawn, task.decode(policy, context, drawn, batch))
    for name, part in parts.items():
        np.testing.assert_allclose(start[f"reward_{name}"], part.flatten(), atol=1e-12)
    total = sum(weights[name] * part for name, part in parts.items())
    np.testing.assert_allclose(start["reward"], total.flatten(), atol=1e-12)
    assert start.groupby("example_id")["reward"].nunique().max() > 1


def test_each_batch_of_an_audit_is_drawn_with_noise_of_its_own_at_the_temperature(monkeypatch):
    """Three prompts, two at a time: the rows are those of their own example."""
    monkeypatch.setattr(audit, "BATCH_PROMPTS", 2)
    rows, task, policy = scored(rows=ROWS[[5, 5, 1]], seed=4, replies={"temperature": 2.0})
    expected = []
    for number, part in enumerate((ROWS[[5, 5]], ROWS[[1]])):
        batch = task.make_batch(make_data(), part)
        generator = step_generator(4, number, stream=Stream.AUDIT)
        context = task.encode(policy, batch)
        drawn = task.sample(policy, context, SETS, temperature=2.0, proposal="policy", generator=generator)
        expected += [printable(reply) for group in task.texts(drawn) for reply in group]
    start = one(rows, "start")
    assert start["reply"].tolist() == expected
    assert start.index.tolist() == ["e05"] * 6 + ["e01"] * 3
    assert one(rows, "reference")["reply"].tolist() == [TABLE.loc[name, "answers"][0] for name in ("e05", "e05", "e01")]


def test_a_reward_that_asks_for_the_prompt_gets_that_of_its_own_example():
    """In the audit and in the evaluation: 100 for each letter of the question, and the length of the reply."""
    rewards = {"own": {"asks": {"function": "tiny_rewards:lengths_of_both", "weight": 1.0}}}
    rows, task, policy = scored(rows=ROWS[[5, 1]], reward=rewards)
    predictions = task.evaluate(policy, make_data(), ROWS[[5, 1]], seed=0, n_samples=1).rename(columns={"rule": "policy"})
    for table in (rows, predictions):
        reference = one(table, "reference")
        for name in ("e05", "e01"):
            expected = 100 * len(TABLE.loc[name, "question"]) + len(TABLE.loc[name, "answers"][0])
            assert reference.loc[name, "reward_asks"] == expected
    assert TABLE.loc["e05", "answers"][0] != TABLE.loc["e01", "answers"][0]


def test_scores_of_samples_are_beside_their_own_answers(monkeypatch):
    answers = list(TABLE["answers"].iloc[:8])
    said = [(texts[-1], "x", "i like") for texts in answers]
    monkeypatch.setattr(DialogueTask, "texts", lambda self, rollouts: said)
    start = one(scored()[0], "start")
    expected = f1([reply for group in said for reply in group], [texts for texts in answers for _ in range(SETS)]).tolist()
    assert start["f1"].tolist() == start["reward_f1"].tolist() == expected
    assert len(set(expected)) > 2


def test_a_reply_that_cannot_be_scored_is_nan_and_not_zero():
    examples = make_examples()
    examples.table.at[0, "answers"] = ["nan"]
    data = make_data()
    rows, _, _ = scored(data=DialogueData(examples, data.prompts, data.references), reward=SCRIPTED)
    reference = one(rows, "reference")
    assert reference.index[reference["reward"].isna()].tolist() == ["e00"]
    assert reference.loc["e00", "f1"] == 1.0
