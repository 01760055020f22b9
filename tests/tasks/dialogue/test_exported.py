"""An exported model is complete by itself: it writes the same replies without the folder that it was trained from."""

import json
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny_attention
import tiny_talk as tiny
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.weights import load_weights, save_weights
from grpo_pipeline.tasks.dialogue import prompt_answers
from grpo_pipeline.tasks.dialogue.exported_model import read_exported
from grpo_pipeline.tasks.dialogue.huggingface_folder import FOLDER, plain_model
from grpo_pipeline.tasks.dialogue.language_model.build import build_language_model
from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelParams
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import prompt_texts, story_text
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies, sample_replies
from grpo_pipeline.tasks.dialogue.language_model.tokens import decode_rows, pad_rows
from grpo_pipeline.tasks.dialogue.prompt_answers import answer, answer_request, write_reply

POSITIONS = {"t5": {}, "gpt2": {"max_positions": 400}, "llama": {"max_positions": 400}}
LORA = {"kind": "lora", "rank": 2, "alpha": 3.0}


def model_folder(path: Path, architecture: str) -> dict[str, Any]:
    """Write a model and a tokenizer of its 259 words; returns the section that reads them."""
    language_model = {"kind": architecture, **POSITIONS[architecture]}
    model = tiny.make_task(language_model=language_model).build_policy(3).model
    tiny_attention.shake(model, seed=2)
    model.save_pretrained(path)
    known = ["<pad>", "<eos>", "<unk>", "cat", "dog", "like", "i", "story", "what", "hello"]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*known, *map(str, range(10, 259))])}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "<unk>", "eos_token": "<eos>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(path)
    return {"kind": "folder", "path": str(path), "tokenizer": "folder"}


def exported(folder: Path, language_model: dict[str, Any]) -> tuple[Any, Any]:
    task = tiny.make_task(language_model=language_model)
    return task, tiny_attention.export(folder, tiny, task, tiny.make_data(task), scale=0.3)


@pytest.mark.parametrize(
    ("architecture", "lora"),
    [("t5", None), ("gpt2", None), ("llama", None), ("t5", LORA | {"targets": ["q", "v"]}), ("new", None), (None, None)],
    ids=str,
)
def test_the_same_replies_without_the_folder_that_it_came_from(tmp_path: Path, architecture: str | None, lora: Any) -> None:
    source = (
        {} if architecture is None else model_folder(tmp_path / "hub", architecture.replace("new", "gpt2")) | {"tuning": lora}
    )
    if architecture == "new":  # fresh weights for the words of a folder
        source = {"kind": "gpt2", **POSITIONS["gpt2"], "tokenizer": str(tmp_path / "hub")}
    task, policy = exported(tmp_path / "model", source)
    context = task.encode(policy, task.make_batch(tiny.make_data(task), np.arange(6)))
    expected = [*task.texts(greedy_replies(policy, context, max_tokens=task.replies.max_tokens, ends=task.ends))]
    before = torch.random.get_rng_state()
    if source:
        shutil.rmtree(tmp_path / "hub")
        assert {"tokenizer.json", "tokenizer_config.json"} <= {path.name for path in (tmp_path / "model" / FOLDER).iterdir()}
    examples, model = tiny.make_examples(), read_exported(tmp_path / "model")
    known = {row.story_id: story_text(row.title, row.text) for row in examples.stories.itertuples()}
    rows = [*examples.table.iloc[:6].itertuples()]
    assert [(write_reply(model, row.question, [known[i] for i in row.story_ids]),) for row in rows] == expected
    assert any(text for (text,) in expected)
    assert torch.equal(torch.random.get_rng_state(), before)
    adapter = ["adapter"] if lora else []
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [*adapter, FOLDER, "model.json", "model.safetensors"]


def test_what_is_no_complete_model_of_this_task_is_refused(tmp_path: Path) -> None:
    exported(tmp_path / "model", model_folder(tmp_path / "hub", "t5"))
    with pytest.raises((OSError, ValueError)):  # transformers' folder is the one inside
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", local_files_only=True)
    weights = load_weights(tmp_path / "model")
    save_weights(tmp_path / "before", weights)
    with pytest.raises(FileNotFoundError, match=r"before must hold one of tokenizer.json"):
        read_exported(tmp_path / "before")
    vit = {"language_model_config": weights.config["language_model_config"] | {"model_type": "vit"}}
    for changes, message in [
        ({"task": "attention"}, "must hold a model of the dialogue task, got 'attention'"),
        (vit, "language_model_config of 'vit' must hold a causal language model or an encoder-decoder"),
    ]:
        save_weights(tmp_path / "other", replace(weights, config=weights.config | changes))
        with pytest.raises(ValueError, match=message):
            read_exported(tmp_path / "other")


def plain_logprobs(model: Any, prompt: torch.Tensor, reply: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities [T] of a reply's tokens as transformers computes them, one row, no padding."""
    if model.config.is_encoder_decoder:
        start = torch.tensor([[model.config.decoder_start_token_id]])
        logits = model(input_ids=prompt[None], decoder_input_ids=torch.cat((start, reply[None, :-1]), dim=1)).logits[0]
    else:
        logits = model(input_ids=torch.cat((prompt, reply[:-1]))[None]).logits[0, len(prompt) - 1 :]
    return logits.log_softmax(-1).gather(-1, reply[:, None])[:, 0]


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
@pytest.mark.parametrize("architecture", ["t5", "gpt2", "llama"])
@torch.no_grad()
def test_transformers_loads_every_key_and_says_the_same(tmp_path: Path, architecture: str, lora: Any) -> None:
    section = {"kind": architecture, **POSITIONS[architecture], "tuning": lora}
    task, policy = exported(tmp_path / "model", section)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    merged = plain_model(policy)
    assert not [name for name in merged.state_dict() if "lora" in name or "base_layer" in name]
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())
    # Training may begin with it.
    network = {"kind": "folder", "path": str(tmp_path / "model" / FOLDER), "tokenizer": "bytes"}
    params = LanguageModelParams.model_validate({"network": network})
    begun = build_language_model(params, seed=0)[0].model.state_dict()
    torch.testing.assert_close({name: begun[name] for name in merged.state_dict()}, merged.state_dict(), rtol=0, atol=0)
    folder = tmp_path / "model" / FOLDER
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text = "persona: i bake bread – ¡olé! context: hi\n"
    assert theirs.encode(text, add_special_tokens=False) == task.tokenizer.encode(text)
    assert (theirs.eos_token_id, theirs.pad_token_id, len(theirs)) == (task.tokenizer.eos_id, task.tokenizer.pad_id, 259)
    loader = AutoModelForSeq2SeqLM if architecture == "t5" else AutoModelForCausalLM
    model, told = loader.from_pretrained(folder, output_loading_info=True, local_files_only=True)
    assert [key for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in told[kind]] == []

    batch = task.make_batch(tiny.make_data(task), np.arange(4))
    generator = torch.Generator().manual_seed(3)
    # Of several texts that are fused in the decoder the first one: transformers knows no fusion.
    ids, is_token = batch.prompt.ids[:, :1], batch.prompt.is_token[:, :1]
    context = policy.encode(ids, is_token)
    rollouts = task.sample(policy, context, 2, temperature=1.0, proposal="policy", generator=generator)
    ours = task.score(policy, context, rollouts, temperature=1.0).logprobs
    compared = 0
    for p, g in np.ndindex(4, 2):
        drawn = rollouts.is_valid[p, g]
        plain = plain_logprobs(model.eval(), ids[p, 0, is_token[p, 0]], rollouts.actions[p, g, drawn])
        torch.testing.assert_close(ours[p, g, drawn], plain, rtol=0, atol=1e-5)
        compared += int(drawn.sum())
    assert compared > 10


def test_new_prompts_get_the_likeliest_reply_and_samples_that_hang_on_nothing_else(tmp_path: Path) -> None:
    exported(tmp_path / "model", {})
    model = read_exported(tmp_path / "model")
    told = [{"title": "A", "text": "b"}, "a story as it is read"]
    texts = ["title: A story: b", "a story as it is read"]
    table = pd.DataFrame({"question": ["persona: i context: hello", "persona: you context: hi"], "stories": [told, np.nan]})
    found = answer(model, table, samples=3, seed=1)
    assert found["reply"].tolist() == [
        write_reply(model, "persona: i context: hello", texts), write_reply(model, "persona: you context: hi", [])
    ]  # fmt: skip
    assert [len(replies) for replies in found["replies"]] == [3, 3]
    alone = answer(model, table.iloc[1:], samples=3, seed=1)
    assert alone["replies"].tolist() == found["replies"].tolist()[1:]  # nor on the other rows
    assert answer(model, table, samples=3, seed=2)["replies"].tolist() != found["replies"].tolist()
    content = sha256(b"persona: i context: hello\0title: A story: b\0a story as it is read").digest()
    generator = step_generator(1, int.from_bytes(content[:8], "big"), stream=Stream.PREDICTION)
    kind, ends = model.language_model.kind, (*model.tokenizer.end_ids, model.tokenizer.pad_id)
    read, end, most = (
        prompt_texts("persona: i context: hello", texts, kind=kind),
        [model.tokenizer.eos_id],
        model.prompt.max_tokens,
    )
    tokens = pad_rows([model.tokenizer.encode(text)[-(most - 1) :] + end for text in read], pad_id=model.tokenizer.pad_id)
    encoded = model.language_model.encode(tokens.ids[None], tokens.is_token[None])
    drawn = sample_replies(model.language_model, encoded, 3, params=model.replies, ends=ends, generator=generator)
    assert found["replies"].iloc[0] == decode_rows(model.tokenizer, drawn.actions[0], drawn.is_valid[0])
    as_text = pd.DataFrame({"question": table["question"], "stories": [json.dumps(told), ""]})  # as a CSV file has it
    pd.testing.assert_frame_equal(answer(model, as_text, samples=3, seed=1), found)
    assert answer(model, table, samples=0, seed=1)["replies"].tolist() == [[], []]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"text": ["a"]}, r"the prompts must have a column 'question', got \['text'\]; add it"),
        ({"question": ["a", " "]}, "row 1 of the prompts: question must be a text, got ' '; fill it in"),
        ({"question": ["a"], "stories": ["[oops"]}, "row 0 of the prompts: stories must be a list in JSON, got"),
        ({"question": ["a"], "stories": [3]}, "row 0 of the prompts: stories must be a list, got 3; correct it"),
        ({"question": ["a"], "stories": [[{"title": "x"}]]}, "row 0 of the prompts: a story must be a text, or have title and"),
    ],
)
def test_a_prompt_that_is_not_right_is_named(tmp_path: Path, table: Any, message: str) -> None:
    exported(tmp_path / "model", {})
    with pytest.raises(ValueError, match=message):
        answer(read_exported(tmp_path / "model"), pd.DataFrame(table), samples=0, seed=0)
    with pytest.raises(ValueError, match="a request must have at most 256 rows and 64 samples, got 1 and 65; send several"):
        answer_request(read_exported(tmp_path / "model"), pd.DataFrame({"question": ["a"]}), samples=65, seed=0)


def test_a_request_of_exactly_as_many_rows_and_samples_as_allowed_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(tmp_path / "model", {})
    model, table = read_exported(tmp_path / "model"), pd.DataFrame({"question": ["persona: i context: hello"] * 3})
    monkeypatch.setattr(prompt_answers, "MOST_ROWS", 2)
    monkeypatch.setattr(prompt_answers, "MOST_SAMPLES", 2)
    assert len(answer_request(model, table[:2], samples=2, seed=0)) == 2
    for rows, samples in ((3, 2), (2, 3)):
        with pytest.raises(ValueError, match=f"at most 2 rows and 2 samples, got {rows} and {samples}; send several"):
            answer_request(model, table[:rows], samples=samples, seed=0)


def test_a_question_that_is_too_long_is_cut_or_refused_as_in_training(tmp_path: Path) -> None:
    exported(tmp_path / "model", {})
    model, table = read_exported(tmp_path / "model"), pd.DataFrame({"question": ["persona: " + "a " * 100 + "context: hello"]})
    assert len(answer(model, table, samples=0, seed=0)) == 1
    strict = replace(model, prompt=model.prompt.model_copy(update={"too_long": "refuse"}))
    with pytest.raises(
        ValueError, match="row 0 of the prompts: text 0 must have at most 63 tokens, got 223; shorten it, or train"
    ):
        answer(strict, table, samples=0, seed=0)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_an_older_exported_model_answers_as_the_same_model_of_today(tmp_path: Path, kind: str) -> None:
    attention = LORA | {"targets": {"t5": ["q", "v"], "gpt2": ["c_attn"]}[kind]}
    exported(tmp_path / "now", {"kind": kind, "tuning": attention, **POSITIONS[kind]})
    weights = load_weights(tmp_path / "now")
    sizes = {name: value for name, value in weights.config["language_model"]["network"].items() if name != "kind"}
    before = {
        "source": "new", "architecture": kind, **sizes, "lora": {"rank": 2, "alpha": 3.0},
        "max_positions": sizes.get("max_positions"),
    }  # fmt: skip
    save_weights(tmp_path / "before", replace(weights, config=weights.config | {"language_model": before}))
    now, old = (read_exported(tmp_path / name) for name in ("now", "before"))
    found, expected = old.policy.state_dict(), now.policy.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    question = "persona: i like red. context: hello"
    assert write_reply(old, question, []) == write_reply(now, question, [])


def test_a_conversation_is_a_question_too(tmp_path: Path) -> None:
    exported(tmp_path / "model", {})
    model, answered = read_exported(tmp_path / "model"), {"role": "assistant", "content": "hi"}
    said = [{"role": "user", "content": "hello"}, answered, {"role": "user", "content": "so?"}]
    table = pd.DataFrame({"question": [said, "user: hello\nassistant: hi\nuser: so?", [*said, answered]]})
    replies = answer(model, table, samples=2, seed=0)
    # Without a template it is read as lines, and a last message by the assistant is the answer that the data have.
    assert replies["reply"][0] == replies["reply"][1] == replies["reply"][2]
    assert replies["replies"][0] == replies["replies"][1] == replies["replies"][2]
    with pytest.raises(ValueError, match=r"row 0 of the prompts: question\[0\] must have role and content, got"):
        answer(model, pd.DataFrame({"question": [[{"role": "user"}]]}), samples=0, seed=0)
    chat = replace(model, prompt=model.prompt.model_copy(update={"template": "chat", "too_long": "refuse"}))
    with pytest.raises(ValueError, match="row 0 of the prompts: dialogue.prompt.template must be null for the tokenizer bytes"):
        answer(chat, table, samples=0, seed=0)
