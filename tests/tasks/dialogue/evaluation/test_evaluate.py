import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_attention import shake
from tiny_rewards import scripted
from tiny_talk import make_data, make_task

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.dialogue.data.hidden_characters import printable
from grpo_pipeline.tasks.dialogue.evaluation import evaluate, validation
from grpo_pipeline.tasks.dialogue.evaluation.evaluate import Said, prediction_rows
from grpo_pipeline.tasks.dialogue.evaluation.metrics import REQUIRED, RULES, build_suite
from grpo_pipeline.tasks.dialogue.evaluation.prediction_columns import MODEL_COLUMNS
from grpo_pipeline.tasks.dialogue.evaluation.trivial_rules import TRIVIAL_RULES
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies
from grpo_pipeline.tasks.dialogue.language_model.teacher_forcing import reference_perplexity
from grpo_pipeline.tasks.dialogue.scores.bleu import bleu
from grpo_pipeline.tasks.dialogue.scores.f1 import f1

SEED, SETS = 3, 4
# An untrained language model earns no overlap: a reward that differs between any two replies.
TASK = make_task(
    reward={"own": {"scripted": {"function": "tiny_rewards:scripted", "weight": 1.0}}},
    replies={"top_k": 20, "top_p": 0.9, "temperature": 1.3},
)
DATA = make_data(TASK)
ROWS = np.array([10, 11, 12])


@pytest.fixture(scope="module")
def policy():
    """The start with other weights."""
    policy = TASK.build_policy(SEED)
    shake(policy, seed=1)
    return policy


@pytest.fixture(scope="module")
def table(policy):
    return TASK.evaluate(policy, DATA, ROWS, seed=SEED, n_samples=SETS)


def of(table, rule):
    return table[table["rule"] == rule].reset_index(drop=True)


def test_it_is_one_row_per_example_and_rule_that_the_metrics_can_read(table):
    assert set(REQUIRED) <= set(table.columns)
    assert table.groupby("rule")["example_id"].apply(list).to_dict() == {rule: ["e10", "e11", "e12"] for rule in RULES}
    metrics = build_suite({}).metrics
    values = {name: metric(of(table, "policy"), np.ones((1, 3)))[0] for name, metric in metrics.items()}
    assert [name for name, value in values.items() if math.isnan(value) and not name.startswith("distinct")] == []
    for rule in TRIVIAL_RULES:  # which have no model
        rows = of(table, rule)
        assert rows[list(MODEL_COLUMNS)].isna().all(axis=None)
        assert rows["f1"].tolist() == pytest.approx(rows["reward_f1"].tolist())
    assert of(table, "reference")["f1"].tolist() == [1.0, 1.0, 1.0]
    assert of(table, "copy_persona")["reply"].tolist() == ["i like red.", "i like blue.", "i like green."]


def test_the_start_is_the_policy_that_has_not_moved(table):
    still = TASK.evaluate(TASK.build_policy(SEED), DATA, ROWS, seed=SEED, n_samples=SETS)
    pd.testing.assert_frame_equal(of(still, "policy").drop(columns="rule"), of(still, "start").drop(columns="rule"))
    assert of(still, "policy")["kl_start"].tolist() == [0.0, 0.0, 0.0]
    pd.testing.assert_frame_equal(of(still, "start"), of(table, "start"))
    assert (of(table, "policy")["kl_start"] > 0.01).all()
    assert of(table, "policy")["reply"].tolist() != of(table, "start")["reply"].tolist()
    assert of(table, "greedy")["kl_start"].isna().all()


def test_the_start_replies_to_the_rows_that_are_asked_for(policy, table):
    """Its replies are kept for the other arms, and not taken for answers to other prompts."""
    one = TASK.evaluate(policy, DATA, ROWS[1:], seed=SEED, n_samples=SETS)
    assert of(one, "start")["example_id"].tolist() == ["e11", "e12"]
    fresh = replace(TASK).evaluate(policy, DATA, ROWS[1:], seed=SEED, n_samples=SETS)
    pd.testing.assert_frame_equal(of(one, "start"), of(fresh, "start"))


def test_scores_are_of_the_first_reply_and_rewards_of_all(policy, table, monkeypatch):
    seen = []
    sample = type(TASK).sample

    def spy(*args, **options):
        seen.append(sample(*args, **options))
        return seen[-1]

    monkeypatch.setattr(type(TASK), "sample", spy)
    TASK.evaluate(policy, DATA, ROWS, seed=SEED, n_samples=SETS)
    replies = TASK.texts(seen[0])
    answers = list(DATA.examples.table["answers"].iloc[ROWS])
    rows = of(table, "policy")
    assert rows["f1"].tolist() == f1([group[0] for group in replies], answers).tolist()
    assert rows["reply"].tolist() == [printable(group[0]) for group in replies]
    means = [np.mean(scripted(list(group), [texts] * SETS)) for group, texts in zip(replies, answers, strict=True)]
    assert rows["reward_scripted"].tolist() == pytest.approx(means)
    weights = TASK.rewards.weights
    assert rows["reward"].tolist() == pytest.approx(sum(w * rows[f"reward_{name}"] for name, w in weights.items()).tolist())
    assert rows["tokens"].tolist() == seen[0].is_valid[:, 0].sum(-1).tolist()
    first = [ids[is_valid].tolist() for ids, is_valid in zip(seen[0].actions[:, 0], seen[0].is_valid[:, 0], strict=True)]
    assert rows["ended"].tolist() == [float(TASK.ends[0] in ids) for ids in first]
    start, batch = TASK.build_policy(SEED), TASK.make_batch(DATA, ROWS)
    with torch.no_grad():
        others = TASK.score(start, TASK.encode(start, batch), seen[0], temperature=TASK.replies.temperature).logprobs
    gap = (others - seen[0].logprobs).double()  # log q / p of a token that p has drawn: k3 = q / p - 1 - log q / p
    kl = (gap.exp() - 1 - gap).where(seen[0].is_valid, 0.0).sum(-1).mean(-1)
    assert rows["kl_start"].tolist() == pytest.approx(kl.tolist(), rel=1e-3)


def test_every_batch_has_noise_of_its_own(policy, monkeypatch):
    """The same prompt in two batches: with the noise of the first one it would be answered twice alike."""
    monkeypatch.setattr(evaluate, "BATCH_PROMPTS", 1)
    table = DATA.examples.table.copy()
    table.loc[[10, 11], "story_id"] = ["s1", "s9"]
    data = type(DATA)(type(DATA.examples)(table, DATA.examples.stories, "x"), DATA.prompts, DATA.references)
    rows = of(TASK.evaluate(policy, data, ROWS[[0, 0, 1, 2]], seed=SEED, n_samples=SETS), "policy")
    assert rows["reply"][:2].nunique() == 2
    np.testing.assert_array_equal(rows["story_found"], [1.0, 1.0, 0.0, np.nan])  # whether the needed story was among those read


def drawn_by_batch(model, rows, *, stream):
    """Yield what each batch of two prompts, the last one of fewer, is drawn as: batch, context, rollouts."""
    for number, first in enumerate(range(0, len(rows), 2)):
        batch = TASK.make_batch(DATA, rows[first : first + 2])
        context, generator = TASK.encode(model, batch), step_generator(SEED, number, stream=stream)
        temperature = TASK.replies.temperature
        drawn = TASK.sample(model, context, SETS, temperature=temperature, proposal="policy", generator=generator)
        yield batch, context, drawn


def test_an_evaluation_of_unequal_batches_has_the_rows_of_each(policy, monkeypatch):
    monkeypatch.setattr(evaluate, "BATCH_PROMPTS", 2)
    table = replace(TASK).evaluate(policy, DATA, ROWS, seed=SEED, n_samples=SETS)
    for rule, model in (("policy", policy), ("start", TASK.build_policy(SEED))):
        replies, nll, rewards = [], [], []
        for batch, context, drawn in drawn_by_batch(model, ROWS, stream=Stream.EVALUATION):
            replies += TASK.texts(drawn)
            nll += reference_perplexity(model, context, batch.reference).nll.tolist()
            parts, weights = TASK.reward(batch, drawn, TASK.decode(model, context, drawn, batch))
            rewards += sum(weights[name] * part for name, part in parts.items()).mean(1).tolist()
        found = of(table, rule)
        assert found["example_id"].tolist() == ["e10", "e11", "e12"]
        assert found["reply"].tolist() == [printable(group[0]) for group in replies]
        assert found["reference_nll"].tolist() == pytest.approx(nll)
        assert found["reward"].tolist() == pytest.approx(rewards)


def test_a_validation_of_unequal_batches_is_the_mean_over_replies_and_tokens(policy, monkeypatch):
    """And a reply without a score of its own reward counts in no mean: that of the third prompt's first reply."""
    monkeypatch.setattr(validation, "BATCH_PROMPTS", 2)
    totals, ended, tokens, nll, references = [], [], [], 0.0, 0.0
    for batch, context, drawn in drawn_by_batch(policy, ROWS, stream=Stream.VALIDATION):
        parts, weights = TASK.reward(batch, drawn, TASK.decode(policy, context, drawn, batch))
        totals += sum(weights[name] * part for name, part in parts.items()).flatten().tolist()
        ids = [one[kept].tolist() for one, kept in zip(drawn.actions.flatten(0, 1), drawn.is_valid.flatten(0, 1), strict=True)]
        ended, tokens = ended + [TASK.ends[0] in one for one in ids], tokens + [len(one) for one in ids]
        known = reference_perplexity(policy, context, batch.reference)
        nll, references = nll + float(known.nll.sum()), references + float(known.tokens.sum())
    found = TASK.validate(policy, DATA, ROWS, seed=SEED, n_samples=SETS)
    assert found["reward/mean"] == pytest.approx(sum(totals) / 12)
    assert (found["reply/ended"], found["reply/tokens"]) == pytest.approx((sum(ended) / 12, sum(tokens) / 12))
    assert found["reference/perplexity"] == pytest.approx(math.exp(nll / references))
    reward, totals[8] = type(TASK).reward, math.nan
    monkeypatch.setattr(type(TASK), "reward", lambda *given: without_first(*reward(*given)))
    assert TASK.validate(policy, DATA, ROWS, seed=SEED, n_samples=SETS)["reward/mean"] == pytest.approx(np.nanmean(totals))


def without_first(parts, weights):
    """Return parts in which the first reply of a batch of one prompt has no score."""
    if len(parts["scripted"]) == 1:
        parts["scripted"][0, 0] = math.nan
    return parts, weights


def test_replies_of_a_group_are_compared_as_the_rewards_compare_them(policy, monkeypatch):
    said = [("a b c d", "a b c x", "a y", "b c d e"), ("q w", "q w", "q e", "r")]
    monkeypatch.setattr(type(TASK), "texts", lambda self, drawn: said if drawn.actions.shape[1] == SETS else [("x",)] * 2)
    found = of(TASK.evaluate(policy, DATA, ROWS[:2], seed=SEED, n_samples=SETS), "policy")
    expected = [np.mean([bleu([one], [[*group[:i], *group[i + 1 :]]])[0] for i, one in enumerate(group)])
                for group in said]  # fmt: skip
    assert found["self_bleu"].tolist() == pytest.approx(expected)


def test_likelihoods_are_of_the_reader_of_the_rule_and_greedy_replies_the_likeliest(policy, table):
    batch = TASK.make_batch(DATA, ROWS)
    for rule, language_model in (("policy", policy), ("greedy", policy), ("start", TASK.build_policy(SEED))):
        found = reference_perplexity(language_model, TASK.encode(language_model, batch), batch.reference)
        assert of(table, rule)["reference_nll"].tolist() == pytest.approx(found.nll.tolist())
        assert of(table, rule)["reference_tokens"].tolist() == found.tokens.tolist()
    greedy = of(table, "greedy")
    written = TASK.texts(greedy_replies(policy, TASK.encode(policy, batch), max_tokens=TASK.replies.max_tokens, ends=TASK.ends))
    assert greedy["reply"].tolist() == [printable(group[0]) for group in written]
    assert greedy["rouge_l"].tolist() == greedy["reward_rouge_l"].tolist()
    assert greedy["self_bleu"].isna().all()


def test_a_reply_without_a_reward_is_left_out_of_the_mean_and_counted():
    parts = {"f1": torch.tensor([[0.2, math.nan, 0.4], [math.nan] * 3]), "bleu": torch.tensor([[0.0, 0.0, 0.2], [0.5, 0.5, 0.5]])}
    measured = SimpleNamespace(components=parts, weights={"f1": 1.0, "bleu": 2.0})
    said = Said([("a", "b", "c"), ("d", "e", "f")], SimpleNamespace(result=lambda: measured), {})
    examples, batch = DATA.examples.table.iloc[[10, 11]], TASK.make_batch(DATA, np.array([10, 11]))
    rows = prediction_rows(examples, batch, "policy", said, rewards=SimpleNamespace(own=("f1",), verifiable=()), n_samples=3)
    assert (rows["asked_f1"].tolist(), rows["unscored_f1"].tolist()) == ([3, 3], [1, 3])
    assert rows["reward"].iloc[0] == pytest.approx((0.2 + (0.4 + 0.4)) / 2)
    assert rows["reward_f1"].iloc[0] == pytest.approx(0.3)
    assert math.isnan(rows["reward"].iloc[1])
    assert rows["reward_bleu"].tolist() == pytest.approx([0.2 / 3, 0.5])
