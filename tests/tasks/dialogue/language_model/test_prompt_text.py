"""Prompts and replies as tokens, with the begin of their tokenizer and in the form of a chat template."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import ByteTokenizer
from grpo_pipeline.tasks.dialogue.language_model.folder_tokenizer import FolderTokenizer, read_tokenizer
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import frame_of, prompt_ids, reply_ids
from grpo_pipeline.tasks.dialogue.params import PromptParams

WORDS = [
    "[UNK]",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "user",
    "assistant",
    "system",
    "hello",
    "one",
    "two",
    "story",
    "think",
    ":",
]
PLAIN, CHAT = (PromptParams(max_tokens=9, too_long="refuse", template=template) for template in (None, "chat"))
CHATML = (
    "{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }} <|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)
# As some models that think: what the model writes begins with thoughts that the template adds itself.
THINKING = CHATML.replace("{{ m.content }}", "{% if m.role == 'assistant' %}think {% endif %}{{ m.content }}")
# Without a generation prompt the model's turn has another head.
MOVING = CHATML.replace("<|im_start|> assistant {% endif %}", "<|im_start|> assistant : {% endif %}")
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% endfor %}" + CHATML
)


def tokenizer(folder: Path, template: str | None = None, *, begins: bool = False) -> FolderTokenizer:
    """Return a tokenizer of words, read from a folder; ``begins``: it puts <s> before a text, as Llama's does."""
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if begins:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"]
    )
    if template is not None:
        made.chat_template = template
    made.save_pretrained(folder)
    return read_tokenizer(str(folder))


def words(ids: list[int]) -> str:
    return " ".join(WORDS[i] for i in ids)


@pytest.mark.parametrize("begins", [False, True])
def test_a_text_begins_as_its_tokenizer_would_have_it(tmp_path: Path, begins: bool) -> None:
    found = tokenizer(tmp_path, begins=begins)
    assert found.begin_ids == ((1,) if begins else ())
    assert frame_of(found, PLAIN, kind="causal") == ([1] if begins else [], [])
    assert frame_of(found, PLAIN, kind="seq2seq") == ([1] if begins else [], [found.eos_id])
    assert frame_of(found, CHAT, kind="causal") == ([], [])
    assert words(prompt_ids(found, "hello", ["story"], kind="causal", prompt=PLAIN)[0]) == "story hello [UNK]"  # reply:
    assert words(reply_ids(found, "one two", "hello", [], prompt=PLAIN)) == "one two"


def test_a_prompt_is_a_conversation_at_the_models_turn_and_a_reply_what_follows_it(tmp_path: Path) -> None:
    found = tokenizer(tmp_path, CHATML, begins=True)
    [read] = prompt_ids(found, "hello one", ["story"], kind="causal", prompt=CHAT)
    assert words(read) == "<|im_start|> user story hello one <|im_end|> <|im_start|> assistant"
    assert words(reply_ids(found, "two", "hello one", ["story"], prompt=CHAT)) == "two"  # its end is added with the others'
    told = [{"role": "system", "content": "one"}, {"role": "user", "content": "two"}]
    [read] = prompt_ids(found, "unused", [], kind="causal", prompt=CHAT, messages=told)
    assert words(read) == "<|im_start|> system one <|im_end|> <|im_start|> user two <|im_end|> <|im_start|> assistant"
    assert told == [{"role": "system", "content": "one"}, {"role": "user", "content": "two"}]


def test_what_a_template_writes_before_a_reply_is_part_of_it(tmp_path: Path) -> None:
    found = tokenizer(tmp_path, THINKING)
    assert words(reply_ids(found, "two", "hello", [], prompt=CHAT)) == "think two"


def test_a_template_that_changes_the_prompt_before_a_reply_is_refused(tmp_path: Path) -> None:
    found = tokenizer(tmp_path, MOVING)
    with pytest.raises(ValueError, match=r"got token 6 'two' instead of ':'; repair the template"):
        reply_ids(found, "two", "hello", [], prompt=CHAT)
    short = tokenizer(tmp_path / "short", "{{ 'one two' if add_generation_prompt else 'one' }}")
    with pytest.raises(ValueError, match=r"got token 1 '' instead of 'two'"):
        reply_ids(short, "two", "hello", [], prompt=CHAT)


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (None, [], "must have a chat template for dialogue.prompt.template: chat, got none; add chat_template.jinja"),
        (
            STRICT,
            [{"role": "system", "content": "one"}],
            r"must accept the roles \['system'\], got TemplateError: no system role",
        ),
        ("{% if %}", [], "must accept the roles .*, got TemplateSyntaxError"),
    ],
)
def test_no_template_or_one_that_raises_is_refused(tmp_path: Path, template: str | None, messages: Any, message: str) -> None:
    found = tokenizer(tmp_path, template)
    with pytest.raises(ValueError, match=message):
        prompt_ids(found, "hello", [], kind="causal", prompt=CHAT, messages=messages)


def test_bytes_have_no_template_and_a_template_allows_no_cut() -> None:
    with pytest.raises(ValueError, match="must be null for the tokenizer bytes"):
        prompt_ids(ByteTokenizer(), "hello", [], kind="causal", prompt=CHAT)
    with pytest.raises(ValidationError, match="too_long must be refuse with a template, whose beginning no prompt may lose"):
        PromptParams(max_tokens=9, too_long="keep_end", template="chat")
