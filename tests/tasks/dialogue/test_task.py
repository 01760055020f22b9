from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_attention
import tiny_talk as tiny
import torch

from grpo_pipeline.core.groups import replicate
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.rewards.group_rewards import RewardFailedError
from grpo_pipeline.tasks.dialogue import task as dialogue_task
from grpo_pipeline.tasks.dialogue.build import build_task, check_arms
from grpo_pipeline.tasks.dialogue.data.hidden_characters import printable
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies
from grpo_pipeline.tasks.dialogue.scores.f1 import f1
from grpo_pipeline.tasks.frames import texts_of
from grpo_pipeline.tasks.sample_rewards import measure

SCRIPTED = {"own": {"scripted": {"function": "tiny_rewards:scripted", "weight": 1.0}}}
ROWS = np.arange(4)


def drawn(task: Any, policy: Any, batch: Any, *, proposal: str = "policy", group: int = 3, temperature: float = 1.0) -> Any:
    generator = torch.Generator().manual_seed(0)
    context = task.encode(policy, batch)
    return task.sample(policy, context, group, temperature=temperature, proposal=proposal, generator=generator)


def test_the_reward_is_that_of_each_reply_beside_its_own_answers() -> None:
    task = tiny.make_task()
    batch, policy = task.make_batch(tiny.make_data(), ROWS), task.build_policy(0)
    rollouts = drawn(task, policy, batch)
    assert task.decode(policy, None, rollouts, batch).replies == task.texts(rollouts)
    words = [["red", "i like", "a dog"], ["blue", "x", "i like blue"], ["green", "red", ""], ["cat", "dog", "a cat a cat"]]
    actions, is_valid = torch.full((4, 3, 16), task.ends[1]), torch.zeros(4, 3, 16, dtype=torch.bool)
    for p, g in np.ndindex(4, 3):
        ids = torch.tensor([*task.tokenizer.encode(words[p][g]), task.ends[0]])
        actions[p, g, : len(ids)], is_valid[p, g, : len(ids)] = ids, True
    said = replace(rollouts, actions=actions, is_valid=is_valid, logprobs=torch.zeros(4, 3, 16))
    parts, weights = task.reward(batch, rollouts, task.decode(policy, None, said, batch))
    assert weights == {"f1": 1.0, "rouge_l": 1.0, "bleu": 1.0}
    answers = tiny.make_examples().table["answers"]
    expected = [f1(replies, [answers[p]] * 3).tolist() for p, replies in enumerate(words)]
    assert parts["f1"].tolist() == expected
    assert {round(value, 2) for row in expected for value in row} >= {0.0, 1.0}


def test_a_training_batch_draws_among_the_answers_and_another_one_takes_the_first() -> None:
    task, data = tiny.make_task(), tiny.make_data()
    first = task.make_batch(data, np.array([1])).reference
    assert task.tokenizer.decode(first.ids[0].tolist()) == "blue"
    seen = set()
    for seed in range(20):
        batch = task.make_batch(data, np.array([1]), generator=torch.Generator().manual_seed(seed))
        seen.add(task.tokenizer.decode(batch.reference.ids[0].tolist()))
    assert seen == {"blue", "i lik"}  # cut at 6 tokens


def test_rewards_of_a_part_that_always_fails_stop_the_run() -> None:
    own = {"own": {"broken": {"function": "tiny_rewards:slow", "weight": 1.0, "options": {"seconds": "no number"}}}}
    task = tiny.make_task(reward=own)
    policy, batch = task.build_policy(0), task.make_batch(tiny.make_data(), ROWS)
    rollouts = drawn(task, policy, batch)
    said = r"reward 'broken' must score at least one reply of a batch, got no value from .*TypeErr"
    with pytest.raises(RewardFailedError, match=said):
        task.reward(batch, rollouts, task.decode(policy, None, rollouts, batch))


def test_a_checkpoint_agrees_on_what_decides_the_numbers() -> None:
    data = tiny.make_data()
    same = {"reward_pool": {"chunk_size": 1, "cache_size": 0}}, {"replies": {"tokens_per_batch": 10}}, {}
    others = [
        {"reward": {"f1": {"weight": 2.0}}}, {"replies": {"max_tokens": 7}}, {"language_model": {"width": 16}},
        {"prompt": {"max_tokens": 50}}, {"mean": "per_sequence"}, {"reward_pool": {"failure": "stop"}},
    ]  # fmt: skip
    prints = [str(tiny.make_task(**change).fingerprint(data)) for change in (*same, *others)]
    assert len(set(prints[:3])) == 1
    assert len(set(prints)) == 1 + len(others)


def test_a_checkpoint_agrees_on_weights_names_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the start, of the files of a model's folder, and of a reward; without draws only what a supervised step reads."""
    monkeypatch.syspath_prepend(tmp_path)
    code, data = tmp_path / "changing_reply_reward.py", tiny.make_data()
    code.write_text("def pays(replies, answers):\n    return [1.0] * len(replies)\n")
    own = {"own": {"pays": {"function": "changing_reply_reward:pays", "weight": 1.0}}}
    task, folder = tiny.make_task(reward=own), tmp_path / "model"
    task.build_policy(3).model.save_pretrained(folder)
    weights = ModelWeights({name: value + 1 for name, value in task.build_policy(0).state_dict().items()}, {})
    begun, read = replace(task, start=weights), {"language_model": {"kind": "folder", "path": str(folder)}}
    prints = [str(one.fingerprint(data)) for one in (task, begun, tiny.make_task(**read))]
    (folder / "generation_config.json").rename(folder / "generation_of_old.json")
    prints.append(str(tiny.make_task(**read).fingerprint(data)))
    code.write_text("def pays(replies, answers):\n    return [2.0] * len(replies)\n")
    prints.append(str(tiny.make_task(reward=own).fingerprint(data)))
    assert len(set(prints)) == 5
    for name, value in begun.build_policy(1).state_dict().items():
        assert torch.equal(value, weights.tensors[name])
    short, other, long = (
        tiny.make_task(replies=one).fingerprint(data, draws=False) for one in ({}, {"top_k": 3}, {"max_tokens": 7})
    )
    assert short == other != long


def test_own_rewards_are_tried_on_the_last_answers_of_training_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: dict[str, Any] = {}
    monkeypatch.setattr(dialogue_task, "try_rewards", lambda measures, pool, **named: tried.update(named))
    tiny.make_task(reward=SCRIPTED).check_data(tiny.make_data())
    table = tiny.make_examples().table[:8]
    assert tried["subjects"] == [texts[-1] for texts in table["answers"]]
    assert tried["references"] == table["answers"].tolist()
    assert tried["prompts"] == table["question"].tolist()


def test_so_many_tokens_are_scored_at_a_time_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than one prompt at a time, or all four together."""
    calls: list[int] = []
    for limit, expected in ((1, [1, 1, 1, 1]), (None, [4])):
        task = tiny.make_task(replies={"tokens_per_batch": limit})
        policy, batch = task.build_policy(0), task.make_batch(tiny.make_data(), ROWS)
        rollouts, hidden = drawn(task, policy, batch), policy.hidden
        calls.clear()
        monkeypatch.setattr(
            policy, "hidden", lambda encoded, replies, of=hidden: calls.append(len(replies)) or of(encoded, replies)
        )
        task.score(policy, task.encode(policy, batch), rollouts, temperature=1.0)
        assert calls == expected


@pytest.mark.parametrize(("architecture", "top_k"), [("gpt2", 30), ("llama", None)])
def test_a_causal_architecture_learns_in_a_step(architecture: str, top_k: int | None) -> None:
    language_model = {"kind": architecture, "max_positions": 400, "width": 8}
    whole = {"max_tokens": 200}  # prompts that are not cut differ in length, so that some are padded
    task = tiny.make_task(language_model=language_model, prompt=whole, replies={"top_k": top_k}, reward=SCRIPTED)
    data, algorithm, training = tiny.make_data(task), tiny.algorithm_params(), tiny.training_params()
    state = build_state(algorithm, training, 0, task, data)
    before = tiny_attention.weights(state.policy)
    state, metrics = StepRunner(task, algorithm, training)(state, task.make_batch(data, ROWS))
    assert metrics["policy/ratio_first"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["kl/reference"] >= 0
    assert sorted(tiny_attention.differing(tiny_attention.weights(state.policy), before)) == sorted(before)


def test_what_a_reader_cannot_do_is_refused_before_anything_is_built() -> None:
    """Also options of image encoders, and prompts that leave no room for a reply."""
    task = tiny.make_task(replies={"top_p": 0.9})
    for arm, change, sentence in (
        ("supervised", {"proposal": None}, "proposal must be policy or none for the dialogue task, got uniform"),
        ("supervised", {"proposal": "oracle"}, "proposal must be policy or none for the dialogue task, got oracle"),
        (
            "grpo",
            {"losses": {"value": {"weight": 0.1}}},
            "losses.value must be null and advantage.baseline group for the dialogue task",
        ),
        (
            "grpo",
            {"losses": {"kl": {"estimator": "exact"}}},
            "losses.kl.estimator must be k2, k3 or ratio_k3 for the dialogue task, got exact",
        ),
    ):
        algorithm = tiny.algorithm_params(arm, **change)
        with pytest.raises(ValueError, match=sentence):
            check_arms(task, [tiny.algorithm_params(), algorithm])
        with pytest.raises(ValueError, match=sentence):
            build_state(algorithm, tiny.training_params(), 0, task, tiny.make_data())
    parts = (task.language_model, task.prompt, task.replies, task.rewards, tiny.pool_params(), task.supervised)
    for name, value in (("memory_format", "channels_last"), ("activation_checkpointing", "encoder")):
        said = f"dialogue.training.{name} must be .*, got {value}; the models of this task know no other"
        with pytest.raises(ValueError, match=said):
            build_task(*parts, execution=tiny.training_params(**{name: value}))
    said = r"dialogue.prompt.max_tokens must be at most 59, so that a reply of 6 tokens fits into 64"
    with pytest.raises(ValueError, match=said):
        tiny.make_task(language_model={"kind": "gpt2", "max_positions": 64})
    tiny.make_task(language_model={"kind": "gpt2", "max_positions": 64}, prompt={"max_tokens": 59})


def test_a_model_folder_is_trained_and_known_by_its_content(tmp_path: Path) -> None:
    task, data, from_folder = tiny.make_task(), tiny.make_data(), {}
    for name in ("here", "there"):
        task.build_policy(3).model.save_pretrained(tmp_path / name)
        from_folder[name] = tiny.make_task(language_model={"kind": "folder", "path": str(tmp_path / name)})
    weights, expected = (tiny_attention.weights(one.build_policy(seed)) for one, seed in ((from_folder["here"], 0), (task, 3)))
    assert tiny_attention.differing(weights, expected) == []
    assert from_folder["here"].fingerprint(data) == from_folder["there"].fingerprint(data)
    task.build_policy(4).model.save_pretrained(tmp_path / "there")
    assert from_folder["here"].fingerprint(data) != from_folder["there"].fingerprint(data)
    (tmp_path / "here" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"here must hold config.json and model.safetensors"):
        tiny.make_task(language_model={"kind": "folder", "path": str(tmp_path / "here")})


def test_the_rows_of_a_table_say_what_was_sampled() -> None:
    task, data = tiny.make_task(), tiny.make_data()
    policy, batch = task.build_policy(0), task.make_batch(data, np.array([9, 2]))
    rollouts = drawn(task, policy, batch, group=2)
    table = task.tabulate(data, batch, rollouts)
    assert table["example_id"].tolist() == ["e09", "e09", "e02", "e02"]
    assert table["sample"].tolist() == [0, 1, 0, 1]
    assert table["reply"].tolist() == [printable(text) for group in task.texts(rollouts) for text in group]
    assert table["tokens"].tolist() == rollouts.is_valid.sum(-1).flatten().tolist()
    ended = replace(rollouts, actions=rollouts.actions.clone(), is_valid=rollouts.is_valid.clone())
    ended.actions[0, 1, 1:], ended.is_valid[0, 1, 2:] = task.ends[0], False  # the second token is its end
    open_end = ended.actions.clone()
    open_end[1, 0], ended.is_valid[1, 0] = 5, True
    said = task.tabulate(data, batch, replace(ended, actions=open_end))
    assert said[["tokens", "ended"]].iloc[[1, 2]].to_numpy().tolist() == [[2, 1], [6, 0]]
    assert batch.answers == tuple(tuple(data.examples.table["answers"][row]) for row in (9, 2))
    grouped = replace(batch, rows=replicate(batch.rows, 2))
    assert task.tabulate(data, grouped, rollouts).equals(table)


def test_validation_is_the_mean_over_held_out_replies() -> None:
    task, data = tiny.make_task(reward=SCRIPTED), tiny.make_data()
    policy = task.build_policy(0)
    whole, again, other = (task.validate(policy, data, task.rows(data, "val"), seed=seed, n_samples=3) for seed in (0, 0, 1))
    assert whole == again != other
    assert whole.keys() >= {"reward/mean", "reward/f1/mean", "reward/scripted/mean", "reply/ended", "reference/perplexity"}
    assert whole["reward/mean"] == pytest.approx(sum(whole[f"reward/{name}/mean"] for name in task.rewards.weights))
    assert 100 < whole["reference/perplexity"] < 700  # 259 ids, untrained


def test_a_showcase_shows_the_first_answer_beside_what_the_model_says() -> None:
    task, data, rows = tiny.make_task(replies={"temperature": 1.4}), tiny.make_data(), np.array([11, 3])
    policy = task.build_policy(0)
    shown = task.showcase(policy, data, rows, seed=6)
    table = data.examples.table.iloc[rows]
    assert shown["answer"].tolist() == ["blue", "a cat"]
    assert (shown["example_id"].tolist(), shown["question"].tolist()) == (["e11", "e03"], table["question"].tolist())
    context = task.encode(policy, task.make_batch(data, rows))
    generator = step_generator(6, stream=Stream.SHOWCASE)
    sampled = task.sample(policy, context, 4, temperature=1.4, proposal="policy", generator=generator)
    assert shown["replies"].tolist() == np.asarray([list(group) for group in task.texts(sampled)], dtype=str).tolist()
    greedy = greedy_replies(policy, context, max_tokens=6, ends=task.ends)
    assert shown["greedy"].tolist() == np.asarray([group[0] for group in task.texts(greedy)], dtype=str).tolist()


def test_a_frame_of_training_is_one_reply_to_each_question_and_its_reward_now() -> None:
    task, data, rows = tiny.make_task(replies={"temperature": 1.4}, reward=SCRIPTED), tiny.make_data(), np.array([11, 3])
    before, after = task.build_policy(0), task.build_policy(0)
    tiny_attention.shake(after, seed=1)
    first, again, later = (task.training_frame(policy, data, rows, seed=6) for policy in (before, before, after))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert texts_of(first["question"].numpy()) == data.examples.table["question"].iloc[rows].tolist()
    assert texts_of(first["reply"].numpy()) != texts_of(later["reply"].numpy())
    context, generator = task.encode(before, task.make_batch(data, rows)), step_generator(6, stream=Stream.FRAMES)
    drawn = task.sample(before, context, 1, temperature=1.4, proposal="policy", generator=generator)
    replies = [reply for (reply,) in task.texts(drawn)]
    assert texts_of(first["reply"].numpy()) == [printable(reply) for reply in replies]
    # The weights of tiny_rewards.scripted and F1, which no random reply has.
    expected = measure(task, before, task.make_batch(data, rows), drawn).total[:, 0]
    assert first["reward"].tolist() == expected.tolist()
    assert expected.abs().min() > 0
