"""A retriever that learns: where it begins, when what is read changes, what it learns from, and that a run of it can go on."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny_attention
import tiny_talk as tiny
import torch
from tiny_dialogue import persona_params, retrieval_params
from torch import Tensor

from grpo_pipeline.core.storage.snapshot import restore, snapshot
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.training.loader import make_training_batch
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.short_training import train_steps
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.tasks.dialogue.build import build_task, tokenise
from grpo_pipeline.tasks.dialogue.data.generated.generate import generate_rows, generate_stories
from grpo_pipeline.tasks.dialogue.data.generated.params import HiddenStories
from grpo_pipeline.tasks.dialogue.data.question import parse_question
from grpo_pipeline.tasks.dialogue.data.retrieval import rank, recall
from grpo_pipeline.tasks.dialogue.data.story_index import index_stories
from grpo_pipeline.tasks.dialogue.exported_model import read_exported
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies
from grpo_pipeline.tasks.dialogue.params import PromptParams
from grpo_pipeline.tasks.dialogue.prompt_answers import answer
from grpo_pipeline.tasks.dialogue.retriever.params import LearnedRetriever
from grpo_pipeline.tasks.dialogue.retriever.reading import retriever_loss
from grpo_pipeline.tasks.dialogue.retriever.shelf import Asked, StoryShelf
from grpo_pipeline.tasks.dialogue.retriever.towers import Retriever
from grpo_pipeline.tasks.dialogue.retriever.word_table import WORDS, word_rows
from grpo_pipeline.tasks.dialogue.task import DialogueTask
from grpo_pipeline.testing import check_task

RATES = {"embeddings": 0.01, "encoder": 0.01, "decoder": 0.01, "retriever": 0.01}
STORIES = pd.DataFrame(
    {
        "story_id": ["s1", "s2", "s3", "s4", "s5"],
        "title": ["one", "", "red", "blue cat", "five"],
        "text": ["a cat ran.", "a dog sat still.", "it was green.", "blue, and no dog.", "like number five."],
        "persona_id": ["", "", "p1", "", ""],
    }
)


def params(**changes: Any) -> LearnedRetriever:
    values = {"kind": "learned", "query": "persona", "buckets": 512, "width": 8, "candidates": 3, "explored": 1}
    return LearnedRetriever.model_validate(values | {"temperature": 0.5, "swapped": 0.5, "index_every": 2} | changes)


def with_retriever(**changes: Any) -> PromptParams:
    return tiny.make_task().prompt.model_copy(update={"retriever": params(**changes)})


def shelf(stories: pd.DataFrame = STORIES, **changes: Any) -> StoryShelf:
    return StoryShelf(stories, **{"top_n": 2, "query": "persona", **changes})


def learning_task(**changes: Any) -> DialogueTask:
    """Return a task whose replies of random letters differ and earn something."""
    task = tiny.make_task(reward={"own": {"letters": {"function": "tiny_rewards:by_letters", "weight": 1.0}}})
    task = replace(task, prompt=with_retriever(**changes), shelf=shelf())
    policy = task.build_policy(0)
    tiny_attention.shake(policy.model, seed=1, scale=1.0)
    return replace(task, start=ModelWeights(policy.state_dict(), {}))


def training_params(**changes: Any) -> Any:
    return tiny.training_params(**{"optimizer": {"learning_rates": RATES}, **changes})


def shaken(retriever: Retriever) -> Retriever:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in retriever.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    return retriever


def hidden_examples() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row for each persona whose story shares no word with it, and the stories."""
    hidden = HiddenStories(jobs=10, towns=10)
    given = persona_params(personas=100, dialogues_per_persona=1, extra_stories=0, sentences=2, hidden=hidden)
    given = given.model_copy(update={"needs": given.needs.model_copy(update={"persona": 0.0, "story": 1.0, "none": 0.0})})
    stories = pd.DataFrame(generate_stories(given)).rename(columns={"id": "story_id"}).assign(persona_id="")
    rows = pd.DataFrame(generate_rows(given)).rename(columns={"persona_id": "subject_id"})
    parsed = [parse_question(question) for question in rows["question"]]
    rows = rows.assign(persona=[persona for persona, _ in parsed], context=["\n".join(turns) for _, turns in parsed])
    return rows.assign(partner_id=""), stories


def test_hidden_stories_share_no_word_with_personas_so_tf_idf_finds_them_by_chance() -> None:
    rows, stories = hidden_examples()
    told = {word for text in [*stories["title"], *stories["text"]] for word in WORDS.findall(text)}
    assert not told & {word for persona in rows["persona"] for word in WORDS.findall(persona)}
    assert len(set(rows["story_id"])) == len(stories) == 100
    texts = dict(zip(stories["story_id"], stories["text"], strict=True))
    for row in rows.itertuples():
        assert set(WORDS.findall(row.answers[0])) - {"the"} <= set(WORDS.findall(texts[row.story_id]))
    found = shelf(stories, top_n=1)
    chosen = found.ids(Retriever(params(), found, seed=0).choose(found.asked(rows)).numpy())
    assert recall(rows.assign(story_ids=list(chosen)))["recall_at_1"] == 1 / 100


def test_words_are_counted_with_length_one_and_a_text_without_words_is_nothing() -> None:
    rows, weights = word_rows(["red cat, Red dog", "a", ""], buckets=1000)
    assert rows.shape == (3, 3)
    assert sorted(weights[0].tolist()) == pytest.approx([6**-0.5, 6**-0.5, 2 * 6**-0.5])
    assert weights[1:].sum() == 0
    assert torch.equal(rows[0], word_rows(["red cat red dog"], buckets=1000).rows[0])


def test_it_begins_with_the_tf_idf_ranking_and_never_finds_a_story_of_the_speakers() -> None:
    found, known = shelf(top_n=3), retrieval_params(top_n=3)
    asked = [Asked("i like a blue dog", "p1", ""), Asked("red red", "p2", "p1"), Asked("nothing", "p3", "")]
    expected = rank(index_stories(STORIES, known), asked, known)
    retriever = Retriever(params(), found, seed=3)
    assert found.ids(retriever.choose(asked).numpy()).tolist() == expected
    shaken(retriever).begin_step(1)
    assert "s3" not in found.ids(retriever.choose(asked[:2]).numpy())
    assert found.ids(retriever.choose(asked).numpy()).tolist() != expected


def test_scores_are_tf_idf_and_the_product_of_the_towers() -> None:
    """Beside a sum over words, one by one."""
    retriever = shaken(Retriever(params(), shelf(), seed=0))
    asked, stories = [Asked("blue dog dog", "", ""), Asked("red", "", "")], torch.tensor([[0, 3], [2, 2]])
    documents = [f"{row.title} {row.text}" for row in STORIES.itertuples()]
    known = retriever.shelf.similarities(asked)
    for p, query in enumerate(asked):
        for m, number in enumerate(stories[p].tolist()):
            vectors = []
            for text, table in ((query.query, retriever.queries), (documents[number], retriever.stories)):
                words = WORDS.findall(text)
                length = sum(words.count(word) ** 2 for word in set(words)) ** 0.5
                vectors.append(sum(table[word_rows([word], buckets=512).rows[0, 0]] / length for word in words))
            expected = known[p, number] + float((vectors[0] @ vectors[1]).detach())
            assert float(retriever.scores(asked, stories)[p, m].detach()) == pytest.approx(expected, rel=1e-5)


def test_what_is_read_changes_at_a_new_index_alone() -> None:
    asked = [Asked("i like red", "", "")]

    def read(index_every: int | None) -> list[np.ndarray]:
        retriever, seen = Retriever(params(index_every=index_every), shelf(), seed=0), []
        for draw in (11, 12, 12, 13, 14, 15):
            retriever.begin_step(draw)
            seen.append(retriever.index_scores(asked))
            shaken(retriever)
        assert int(retriever.steps) == 5
        return seen

    seen = read(2)
    assert [np.array_equal(one, other) for one, other in itertools.pairwise(seen)] == [True, True, False, True, False]
    assert all(np.array_equal(seen[0], one) for one in read(None))


def test_candidates_are_the_best_of_the_index_then_others_by_chance() -> None:
    retriever = shaken(Retriever(params(candidates=4, explored=2), shelf(), seed=0))
    retriever.begin_step(1)
    asked, seen = [Asked("blue dog", "", ""), Asked("red", "p1", "")], set()
    order = np.argsort(-retriever.index_scores(asked), axis=1)
    for draw in range(20):
        draws = torch.tensor([draw, 99])
        chosen = retriever.candidates(asked, draws)
        assert torch.equal(chosen, retriever.candidates(asked, draws))
        assert chosen[:, :2].tolist() == order[:, :2].tolist()
        assert all(len(set(row)) == 4 for row in chosen.tolist())
        assert 2 not in chosen[1]
        seen |= {tuple(chosen[0, 2:].tolist())}
    assert {number for pair in seen for number in pair} == set(order[0, 2:].tolist())
    with pytest.raises(ValueError, match=r"candidates must be at most 4, the stories left for a persona, got 5; lower it"):
        Retriever(params(candidates=5), shelf(), seed=0).candidates(asked, torch.tensor([0, 0]))


def test_the_loss_is_the_kl_to_the_rewards_of_those_that_were_scored() -> None:
    nan = float("nan")
    rewards = torch.tensor([[1.0, 0.0, nan], [2.0, 2.0, 2.0], [nan, nan, nan], [0.3, 0.1, 0.9]], dtype=torch.float64)
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    expected = 0.0
    for p in range(4):
        there = [m for m in range(3) if rewards[p, m] == rewards[p, m]]
        if len({float(rewards[p, m]) for m in there}) < 2:
            continue
        target, found = ((one[p, there].double() / t).softmax(0) for one, t in ((rewards, 0.5), (scores.detach(), 1.0)))
        expected += float(sum(a * (a / b).log() for a, b in zip(target, found, strict=True))) / 4
    loss = retriever_loss(scores, rewards, temperature=0.5)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert scores.grad is not None
    assert [bool(row.any()) for row in scores.grad] == [True, False, False, True]


def test_rewards_alone_teach_it_the_rule_of_hidden_stories() -> None:
    """Of personas that it was never taught, too: the reward is 1 for the right story and 0 for others."""
    rows, stories = hidden_examples()
    found = shelf(stories, top_n=1)
    retriever = Retriever(params(buckets=4096, width=64, candidates=8, explored=4, index_every=1), found, seed=0)
    optimizer = torch.optim.AdamW(retriever.parameters(), lr=0.02, weight_decay=0.5)
    taught, others = rows[:80], rows[80:]
    generator = torch.Generator().manual_seed(0)

    def recall_at_1(some: pd.DataFrame) -> float:
        return float((found.ids(retriever.choose(found.asked(some)).numpy())[:, 0] == some["story_id"]).mean())

    assert recall_at_1(others) <= 0.1
    for step in range(150):
        part = taught.iloc[torch.randperm(len(taught), generator=generator)[:32].numpy()]
        asked = found.asked(part)
        retriever.begin_step(step)
        chosen = retriever.candidates(asked, torch.randint(2**62, (32,), generator=generator))
        rewards = torch.from_numpy((found.ids(chosen.numpy()) == part["story_id"].to_numpy()[:, None]) * 1.0)
        optimizer.zero_grad()
        retriever_loss(retriever.scores(asked, chosen), rewards, temperature=0.2).backward()
        optimizer.step()
    # By chance: 0.01.
    assert recall_at_1(taught) >= 0.8
    assert recall_at_1(others) >= 0.2


def test_the_task_keeps_the_contract() -> None:
    check_task(learning_task(), tiny.make_data())


def test_the_reward_teaches_it_through_the_supervised_term_alone() -> None:
    """And no term but the language model's own reaches the language model; before the arms it learns nothing."""
    task = learning_task(index_every=1)
    batch = make_training_batch(task, tiny.make_data(), np.arange(4), seed=0, step=0)

    def gradients(one: DialogueTask) -> dict[str, Tensor]:
        policy = one.build_policy(0)
        assert policy.retriever is not None
        shaken(policy.retriever)
        context = one.encode(policy, batch)
        one.supervised_loss(policy, context, batch, None).backward()
        groups = one.parameter_groups(policy)
        return {
            name: torch.cat([torch.zeros(1) if p.grad is None else p.grad.flatten() for p in groups[name]]) for name in groups
        }

    learns, reads = gradients(task), gradients(task.open_stage("warm_start"))
    assert learns.keys() == RATES.keys()
    assert not reads["retriever"].any()
    assert learns["retriever"].any()
    policy = task.build_policy(0)
    generator = torch.Generator().manual_seed(0)
    context = task.encode(policy, batch)
    drawn = task.sample(policy, context, 2, temperature=1.0, proposal="policy", generator=generator)
    task.score(policy, context, drawn, temperature=1.0).logprobs.sum().backward()
    assert all(p.grad is None for p in task.parameter_groups(policy)["retriever"])


def test_the_warm_start_reads_the_stories_of_the_answers_swapped_ones_too() -> None:
    task, data = learning_task(swapped=1.0).open_stage("warm_start"), tiny.make_data()
    policy = task.build_policy(0)
    batch = make_training_batch(task, data, np.arange(5), seed=0, step=0)
    told = [data.examples.table["answers"].iloc[row] for row in (4, 0, 1, 2, 3)]
    assert [list(texts) for texts in batch.answers] == told
    task.encode(policy, batch)
    asked = [Asked(" ".join(texts), f"p{row % 5}", "") for row, texts in enumerate(told)]
    assert task.encode(policy, batch).stories.tolist() == policy.retriever.choose(asked).tolist()
    plain = task.make_batch(data, np.arange(5))
    assert [list(texts) for texts in plain.answers] == data.examples.table["answers"].iloc[:5].tolist()
    assert task.encode(policy, plain).stories.tolist() == policy.retriever.choose(plain.asked).tolist()


def test_the_reference_reads_what_the_policy_has_read() -> None:
    task, data = learning_task(), tiny.make_data()
    policy, reference = task.build_policy(0), task.build_policy(0)
    shaken(policy.retriever).begin_step(1)
    batch = task.make_batch(data, np.arange(6))
    context, own = task.encode(policy, batch), task.encode(reference, batch)
    assert not torch.equal(context.stories, own.stories)
    drawn = task.sample(policy, context, 2, temperature=1.0, proposal="policy", generator=torch.Generator().manual_seed(0))
    scored = task.score_reference(reference, batch, drawn, temperature=1.0)
    torch.testing.assert_close(scored.logprobs, drawn.logprobs, atol=1e-4, rtol=0)


def test_micro_batches_add_up_to_the_step() -> None:
    task, data = learning_task(), tiny.make_data()
    algorithm, states = tiny.algorithm_params(), []
    for size in (None, 3):
        training = training_params(batch_size=8, micro_batch_size=size)
        states.append(train_steps(algorithm, training, 3, seed=0, task=task, data=data).policy.state_dict())
    assert int(states[0]["retriever.steps"]) == 3
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], atol=2e-5, rtol=1e-4, msg=name)


def test_a_run_that_goes_on_ends_with_the_same_bits() -> None:
    """With the index encoded anew before and after the stop."""
    task, data, algorithm = learning_task(index_every=2), tiny.make_data(), tiny.algorithm_params()
    training = training_params(epochs=6)
    runner = StepRunner(task, algorithm, training)
    whole, stopped = (build_state(algorithm, training, 0, task, data) for _ in range(2))

    def go_on(state: Any, steps: range) -> Any:
        with quiet_nodes():
            for step in steps:
                rows = np.arange(step % 3, step % 3 + 4)
                state, metrics = runner(state, make_training_batch(task, data, rows, seed=0, step=step))
                assert metrics["supervised/reads_rewards"] == 1  # so that an answer says what has taught it
        return state

    whole = go_on(whole, range(5))
    kept = snapshot(go_on(stopped, range(3)), progress={}, parameters={})
    again = restore(build_state(algorithm, training, 0, task, data), kept, parameters={})
    again = go_on(again, range(3, 5))
    assert int(again.policy.state_dict()["retriever.steps"]) == 5
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, again.policy.state_dict()[name]), name


def test_an_exported_model_finds_its_stories_by_itself(tmp_path: Path) -> None:
    task, data = learning_task(), tiny.make_data()
    kit = type("Kit", (), {"training_params": staticmethod(training_params), "algorithm_params": tiny.algorithm_params})
    policy = tiny_attention.export(tmp_path / "model", kit, task, data, scale=0.3)
    read = read_exported(tmp_path / "model")
    rows = np.arange(5)
    for row in data.examples.table.iloc[rows].itertuples():
        asked = [Asked(row.persona, "", "")]
        assert read.language_model.retriever.choose(asked).tolist() == policy.retriever.choose(asked).tolist()
    batch = replace(task.make_batch(data, rows), asked=[one._replace(subject="") for one in task.make_batch(data, rows).asked])
    written = greedy_replies(policy, task.encode(policy, batch), max_tokens=6, ends=task.ends)
    table = pd.DataFrame({"question": data.examples.table["question"].iloc[rows]})
    assert answer(read, table, samples=0, seed=0)["reply"].tolist() == [text for (text,) in task.texts(written)]
    given = answer(read, table.assign(stories=[["a"]] * 5), samples=0, seed=0)["reply"].tolist()
    assert given != answer(read, table, samples=0, seed=0)["reply"].tolist()


def test_rows_of_predictions_say_what_was_found_and_by_whom() -> None:
    task, data = learning_task(), tiny.make_data()
    table = data.examples.table.assign(needs="story", story_id=["s1", "s2", "s4", "s5"] * 3 + [""])
    data = replace(data, examples=replace(data.examples, table=table))
    policy = task.build_policy(0)
    shaken(policy.retriever).begin_step(1)
    rows, found = np.arange(13), {}
    frame = task.evaluate(policy, data, rows, seed=0, n_samples=2)
    for rule, model in (("policy", policy), ("start", task.build_policy(0))):
        chosen = task.shelf.ids(task.encode(model, task.make_batch(data, rows)).stories.numpy())
        first = [float(ids[0] == right) for ids, right in zip(chosen, table["story_id"], strict=True)]
        part = frame[frame["rule"] == rule].sort_values("example_id")
        assert part["recall_at_1"].tolist()[:12] == first[:12]
        assert np.isnan(part["recall_at_1"].iloc[12])
        assert (
            part["story_found"].tolist()[:12]
            == [float(right in ids) for ids, right in zip(chosen, table["story_id"], strict=True)][:12]
        )
        found[rule] = first
    assert found["policy"] != found["start"]
    # Only the retriever differs: with the same stories the start says the same.
    assert (frame.loc[frame["rule"] == "policy", "kl_start"] == 0).all()
    assert task.validate(policy, data, rows, seed=0, n_samples=1)["retriever/recall_at_1"] == np.mean(found["policy"][:12])
    same = task.evaluate(task.build_policy(0), data, rows, seed=0, n_samples=2)
    assert (same.loc[same["rule"] == "policy", "kl_start"] == 0).all()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"explored must be at most candidates, got 4 of 3; lower it"):
        params(explored=4)
    with pytest.raises(ValueError, match=r"dialogue.prompt.retriever must have stories to find, got none"):
        shelf(STORIES[:0])
    made = tiny.make_task()
    parts = [made.language_model, with_retriever(), made.replies, made.rewards, tiny.pool_params(), made.supervised]
    with pytest.raises(ValueError, match=r"dialogue.prompt.retriever must be null without a story corpus"):
        build_task(*parts)
    assert not learning_task().repeats_prompts
    assert tiny.make_task().repeats_prompts
    built = build_task(*parts, examples=tiny.make_examples())
    assert (len(built.shelf), built.shelf.params.top_n) == (2, 2)


def test_the_checkpoint_of_an_arm_depends_on_the_retriever_and_on_what_rewards_it() -> None:
    data, plain, learns = tiny.make_data(), tiny.make_task(), learning_task()
    assert "retriever" not in plain.fingerprint(data)["prompt"]
    prints = [learns.fingerprint(data), learning_task(temperature=0.1).fingerprint(data)]
    assert prints[0] != prints[1]
    other = replace(learns, rewards=tiny.reward_params(f1={"weight": 2.0}))
    assert other.fingerprint(data, draws=False) != learns.fingerprint(data, draws=False)
    opened = [one.open_stage("warm_start").fingerprint(data, draws=False) for one in (learns, other)]
    assert opened[0] == opened[1]
    start = ModelWeights(learns.build_policy(0).state_dict(), {})
    assert not learns.open_stage("warm_start").begin_with(start).reads_by_answers
    assert tokenise(learns, tiny.make_examples())[0].prompts.ids.tolist() == data.prompts.ids.tolist()
