"""An exported model plays on: whole conversations with the environment of its training, or one reply to what a client says."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny_attention
import tiny_talk as tiny
import torch
from tiny_environments import ECHO, Echo, Ending
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grpo_pipeline.core.storage.weights import load_weights, save_weights
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.dialogue.exported import SERVING
from grpo_pipeline.tasks.dialogue.exported_conversation import stage_of
from grpo_pipeline.tasks.dialogue.exported_model import ExportedEnvironment, ExportedModel, read_exported
from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import EOS, OFFSET, ByteTokenizer
from grpo_pipeline.tasks.dialogue.language_model.folder_tokenizer import read_tokenizer
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import prompt_ids, story_text
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies
from grpo_pipeline.tasks.dialogue.params import PromptParams
from grpo_pipeline.tasks.dialogue.prompt_answers import answer
from grpo_pipeline.tasks.loaded import load

GAME = "grpo_pipeline.tasks.dialogue.episodes.guess_number:GuessNumber"
PAY = 0.25
VERSION = "arm/model/2026-01-01T00.00.00.000Z/model"
TURNS = 3
FIRST_SIGN = 0x4E00
OFTEN = 55  # among the three likeliest tokens of the model in many places
CHATML = (
    "{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }} <|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)


class Signs(ByteTokenizer):
    """Write each id as a sign of its own, so that any reply can be sent back."""

    def encode(self, text: str) -> list[int]:
        return [ord(sign) - FIRST_SIGN if ord(sign) >= FIRST_SIGN else ord(sign) + OFFSET for sign in text]

    def decode(self, ids: Any) -> str:
        return "".join(chr(FIRST_SIGN + i) for i in ids if i not in self.end_ids)


def exported(folder: Path, environment: str = ECHO, **options: Any) -> tuple[Any, Any]:
    told = {"weight": 2.0, "environment": environment, "turns": TURNS, "options": options}
    reward = {"f1": None, "rouge_l": None, "bleu": None, "environment": told}
    task = tiny.make_task(replies={"max_tokens": 24}, reward=reward)
    policy = tiny_attention.export(folder, tiny, task, tiny.make_data(task), scale=0.3)
    return replace(task, tokenizer=Ending()), policy


def often_ending(folder: Path) -> ExportedModel:
    return replace(read_exported(folder), tokenizer=Ending())


def rows_of_the_data(count: int) -> pd.DataFrame:
    examples = tiny.make_examples()
    known = {row.story_id: story_text(row.title, row.text) for row in examples.stories.itertuples()}
    told = [[known[name] for name in names] for names in examples.table["story_ids"]]
    return examples.table[["question", "answers"]].assign(stories=told)[:count]


def test_a_row_is_played_and_paid_as_in_training(tmp_path: Path) -> None:
    task, policy = exported(tmp_path / "model", pay=PAY)
    batch = task.make_batch(tiny.make_data(task), np.arange(6))
    context = task.encode(policy, batch)
    drawn = greedy_replies(policy, context, max_tokens=task.replies.max_tokens, ends=task.ends)
    outcomes = task.decode(policy, context, drawn, batch)
    parts, _ = task.reward(batch, drawn, outcomes)
    found = answer(often_ending(tmp_path / "model"), rows_of_the_data(6), samples=4, seed=1)
    assert found["reply"].tolist() == [text for (text,) in outcomes.replies]
    assert found["paid"].tolist() == parts["environment"][:, 0].tolist()
    assert max(len(texts) for row in found["transcripts"] for texts in row) == 2 * TURNS - 1
    for row, answers in zip(found.to_dict("records"), batch.answers, strict=True):
        texts = [row["reply"], *row["replies"]]
        transcripts = [row["transcript"], *row["transcripts"]]
        for text, transcript, paid in zip(texts, transcripts, [row["paid"], *row["payments"]], strict=True):
            echo, lines = Echo(pay=PAY), text.split("\n")
            echo.reset({"answers": list(answers)})
            steps = [echo.step(line) for line in lines]
            expected = [word for line, step in zip(lines, steps, strict=True) for word in (line, step[0])]
            assert transcript == expected[:-1]  # what is said last, nobody reads
            assert paid == pytest.approx(sum(step[1] for step in steps))


def test_turns_of_a_request_are_read_token_by_token_as_in_training(tmp_path: Path) -> None:
    task, policy = exported(tmp_path / "model", pay=PAY)
    batch = task.make_batch(tiny.make_data(task), np.arange(4))
    generator = torch.Generator().manual_seed(0)
    drawn = task.sample(policy, task.encode(policy, batch), 24, temperature=1.0, proposal="policy", generator=generator)
    model, letters, compared = often_ending(tmp_path / "model"), ByteTokenizer(), 0
    for ids, own in zip(drawn.actions.flatten(0, 1).tolist(), drawn.is_valid.flatten(0, 1).tolist(), strict=True):
        told = [place for place in range(len(ids)) if not own[place] and any(own[place:])]
        read = ids[: told[-1] + 1] if told else []
        if not read or not all(
            token in Ending.end_ids or 32 <= token - OFFSET < 127 or not own[i] for i, token in enumerate(read)
        ):
            continue  # of a single reply, or with bytes that are no letters
        edges = [0, *(place for place in range(1, len(read)) if own[place] != own[place - 1]), len(read)]
        # Without the end of a reply, and without the line breaks around what was told.
        turns = [letters.decode(read[a : b - 1] if own[a] else read[a + 1 : b - 1]) for a, b in pairwise(edges)]
        stage = stage_of(model, {"earlier_turns": turns}, "?")
        assert stage is not None
        ended = [EOS if token in Ending.end_ids and own[place] else token for place, token in enumerate(read)]
        assert [*stage.first] == ended
        compared += 1
    assert compared > 5


def chatting(folder: Path) -> Any:
    """Write and read a tokenizer of words with a chat template."""
    known = ["[UNK]", "<|im_start|>", "<|im_end|>", "user", "assistant", "hello", "one", "two", "story"]
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"])
    made.chat_template = CHATML
    made.save_pretrained(folder)
    return read_tokenizer(str(folder))


def test_the_turns_of_a_chat_are_what_its_template_writes(tmp_path: Path) -> None:
    words = chatting(tmp_path)
    chat = PromptParams(max_tokens=9, too_long="refuse", template="chat")
    environment = ExportedEnvironment(ECHO, {}, TURNS, RewardPool(tiny.pool_params()))
    model = ExportedModel(None, words, chat, tiny.reply_params(max_tokens=40), environment)
    stage = stage_of(model, {"earlier_turns": ["two", "hello", "one one", "story"]}, "hello one")
    assert stage is not None
    said = [("user", "hello one"), ("assistant", "two"), ("user", "hello"), ("assistant", "one one"), ("user", "story")]
    whole = words.encode_chat([{"role": role, "content": text} for role, text in said])
    [prompt] = prompt_ids(words, "hello one", [], kind="causal", prompt=chat)
    assert [*prompt, *stage.first] == whole


def test_a_client_that_answers_itself_gets_the_replies_of_the_played_conversation(tmp_path: Path) -> None:
    exported(tmp_path / "model", pay=PAY)
    row = rows_of_the_data(1).to_dict("records")[0]
    model = replace(read_exported(tmp_path / "model"), tokenizer=Signs())
    model = replace(model, replies=model.replies.model_copy(update={"top_k": 3, "temperature": 30.0}))
    model.tokenizer.eos_id, model.tokenizer.end_ids = OFTEN, (OFTEN,)
    [transcripts] = answer(model, pd.DataFrame([row]), samples=8, seed=0)["transcripts"]
    compared = 0
    for sample, transcript in enumerate(transcripts):
        for place in range(0, len(transcript), 2):
            asked = pd.DataFrame([row | {"earlier_turns": transcript[:place]}])
            found = answer(model, asked, samples=8, seed=0)
            assert found["replies"][0][sample] == transcript[place]
            assert [found[name][0] for name in ("transcript", "paid", "transcripts", "payments")] == [None] * 4
            compared += place > 0 and transcript[place] != ""
    assert compared > 5


def with_environment(folder: Path, target: Path, **changes: Any) -> Path:
    """Write the model again, as if it had been trained with another environment."""
    weights = load_weights(folder)
    environment = weights.config["environment"] | changes
    save_weights(target, replace(weights, config=weights.config | {"environment": environment}))
    return target


def test_a_row_that_the_environment_cannot_read_is_refused_and_others_are_played(tmp_path: Path) -> None:
    exported(tmp_path / "echo")
    model = load(with_environment(tmp_path / "echo", tmp_path / VERSION, environment=GAME).parents[2])
    rows = model.table([{"question": "1-8?", "number": 3}, {"question": "1-8?"}, {"question": "1-8?", "number": "5"}])
    found = model.answer(rows, {"samples": 1})
    assert list(found.refused) == [1]
    assert "must begin with a row of the data, got TypeError" in found.refused[1]
    assert len(found.answers) == 2
    assert found.answers["paid"].tolist() == [0.0, 0.0]
    assert [len(row) for row in found.answers["transcripts"]] == [1, 1]
    with pytest.raises(ValueError, match="row 0: the environment .* got KeyError: 'number' for the prompt '1-8\\?'"):
        model.predict(["1-8?"])


def test_a_row_whose_environment_hangs_is_refused_within_the_limit_of_the_training(tmp_path: Path) -> None:
    exported(tmp_path / "echo")
    told = {"environment": "tiny_environments:Wayward", "options": {"how": "hang"}, "timeout_seconds": 1.0}
    model = load(with_environment(tmp_path / "echo", tmp_path / VERSION, **told).parents[2])
    found = model.answer(rows_of_the_data(1), {})
    assert "step of the environment 'tiny_environments:Wayward' must" in found.refused[0]
    assert "TimeoutError: no answer within 1 s" in found.refused[0]


def test_an_environment_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    exported(tmp_path / "echo")
    model = read_exported(with_environment(tmp_path / "echo", tmp_path / "moved", environment="gone:Game"))
    rows = rows_of_the_data(1)
    with pytest.raises(
        ValueError, match="'gone:Game' of the model's .* got ModuleNotFoundError.*; put its file on the import path, for instance"
    ):
        answer(model, rows, samples=0, seed=0)
    assert len(answer(model, rows.assign(earlier_turns=[[]]), samples=2, seed=0)["replies"][0]) == 2  # it is not needed


def test_a_model_that_was_exported_before_writes_first_replies(tmp_path: Path) -> None:
    exported(tmp_path / "now")
    weights = load_weights(tmp_path / "now")
    config = {name: value for name, value in weights.config.items() if name != "environment"}
    save_weights(tmp_path / "before", replace(weights, config=config))
    found = answer(read_exported(tmp_path / "before"), rows_of_the_data(2), samples=1, seed=0)
    assert list(found) == ["reply", "replies"]


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        (
            ["a"],
            r"row 0 of the prompts: earlier_turns must be texts, a reply and what was said to it in turn, got \['a'\]; end with",
        ),
        (["a", 3], "earlier_turns must be texts"),
        ("[oops", "earlier_turns must be a list in JSON"),
        (3, "earlier_turns must be a list, got 3; correct it"),
        (
            ["a" * 15, "b" * 6],
            "earlier_turns must leave room for a reply in the 24 tokens of a conversation, got 24; send fewer, or",
        ),
    ],
)
def test_turns_that_are_not_right_are_refused(tmp_path: Path, turns: Any, message: str) -> None:
    exported(tmp_path / "model")
    model = read_exported(tmp_path / "model")
    with pytest.raises(ValueError, match=message):
        answer(model, rows_of_the_data(1).assign(earlier_turns=[turns]), samples=0, seed=0)
    alone = rows_of_the_data(1).assign(earlier_turns=[["a", "b"]])
    assert answer(model, alone, samples=0, seed=0)["reply"].map(type).tolist() == [str]
    # To a model of single replies it is a column like any other.
    assert len(answer(replace(model, environment=None), alone, samples=0, seed=0)) == 1


def test_a_request_may_have_turns_where_there_was_an_environment(tmp_path: Path) -> None:
    task, _ = exported(tmp_path / "model")
    config = load_weights(tmp_path / "model").config
    assert json.loads(json.dumps(config["environment"])) == {
        "environment": ECHO,
        "turns": TURNS,
        "options": {},
        "timeout_seconds": task.pool.timeout_seconds,
    }
    assert [column.name for column in SERVING.inputs(config)] == ["question", "stories", "earlier_turns", "answers"]
    outputs = [column.name for column in SERVING.outputs(config)]
    assert outputs == ["reply", "replies", "transcript", "paid", "transcripts", "payments"]
    alone = {name: value for name, value in config.items() if name != "environment"}
    assert [column.name for column in SERVING.inputs(alone)] == ["question", "stories"]
