import json

import numpy as np
import pytest
import tiny_talk as tiny

from grpo_pipeline.tasks.dialogue.dialogue_data import tokenise_examples
from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import EOS, ByteTokenizer
from grpo_pipeline.tasks.dialogue.params import PromptParams

BYTES = ByteTokenizer()


def tokenised(kind: str = "seq2seq", max_tokens: int = 200, max_reply_tokens: int = 40, too_long: str = "keep_end"):
    prompt = PromptParams(max_tokens=max_tokens, too_long=too_long)
    return tokenise_examples(tiny.make_examples(), BYTES, kind=kind, prompt=prompt, max_reply_tokens=max_reply_tokens)


def texts_of(table, row: int) -> list[list[int]]:
    bounds = [table.text_starts[t : t + 2] for t in range(table.row_starts[row], table.row_starts[row + 1])]
    return [table.ids[start:end].tolist() for start, end in bounds]


def test_texts_of_prompts_and_references() -> None:
    """An encoder reads each story with the question and an end; a causal model goes on from its prompt."""
    data, _ = tokenised()
    question = "persona: i like red. context: hello\nwhat is number 0?"
    texts = texts_of(data.prompts, 0)
    assert [text[-1] for text in texts] == [EOS, EOS]
    stories = ("title:  story: a dog sat still.", "title: one story: a cat ran.")
    assert [BYTES.decode(text) for text in texts] == [f"{story} {question}" for story in stories]
    (text,) = texts_of(tokenised("causal")[0].prompts, 1)
    assert BYTES.decode(text).endswith("what is number 1? reply:")
    assert EOS not in text
    assert [BYTES.decode(text) for text in texts_of(data.references, 1)] == ["blue", "i like blue"]
    assert all(text[-1] == EOS for row in range(13) for text in texts_of(data.references, row))


def test_what_is_too_long_loses_its_beginning_and_is_counted_or_refused() -> None:
    data, report = tokenised(max_tokens=60, max_reply_tokens=8)
    whole, _ = tokenised()
    assert int(data.prompts.lengths().max()) == 60
    for cut, full in zip(texts_of(data.prompts, 3), texts_of(whole.prompts, 3), strict=True):
        assert cut == full[-60:]
    assert texts_of(data.references, 1)[1] == [*BYTES.encode("i like "), EOS]
    train = report["splits"]["train"]
    lengths = np.diff(whole.prompts.text_starts)[:16]
    assert train["cut_prompt_texts"] == int((lengths > 60).sum()) > 0
    assert train["longest_prompt_text"] == int(lengths.max()) - 1  # without its end
    assert train["cut_reference_replies"] == 4  # "i like …" of every second example
    assert report["splits"]["test"]["examples"] == 3
    assert tokenised(max_reply_tokens=6)[1]["splits"]["train"]["cut_reference_replies"] == 4  # with its end "green" has 6
    # A text that fits exactly is kept, and a longer one refused where that is asked.
    longest = int(tokenised()[0].prompts.lengths().max())
    assert sum(part["cut_prompt_texts"] for part in tokenised(max_tokens=longest)[1]["splits"].values()) == 0
    assert sum(part["cut_prompt_texts"] for part in tokenised(max_tokens=longest - 1)[1]["splits"].values()) > 0
    tokenised(max_tokens=longest, too_long="refuse")
    with pytest.raises(ValueError, match=f"must have at most {longest - 2} tokens in a text, got {longest - 1}; raise"):
        tokenised(max_tokens=longest - 1, too_long="refuse")
    is_cut = (lengths > longest - 2).reshape(8, 2)  # of the two texts of an example the one with the longer story
    counted = tokenised(max_tokens=longest - 2)[1]["splits"]["train"]
    assert counted["cut_prompt_texts"] == is_cut.sum()
    assert counted["examples_with_a_cut_prompt"] == is_cut.any(1).sum() > is_cut.all(1).sum()
    with pytest.raises(ValueError, match=r"the prompt of example 'e00' must have at most 59 tokens in a text, got \d+; raise"):
        tokenised(max_tokens=60, too_long="refuse")


class Framed(ByteTokenizer):
    """Bytes with a begin, and a template that writes each message in brackets and ``<`` at the model's turn."""

    begin_ids = (7,)

    def encode_chat(self, messages, reply=None):
        said = "".join(f"[{m['role']} {m['content']}]" for m in messages)
        return self.encode(f"{said}<" + ("" if reply is None else f"{reply}>"))


def test_the_begin_stays_before_a_prompt_that_is_cut() -> None:
    prompt = PromptParams(max_tokens=20, too_long="keep_end")
    data, _ = tokenise_examples(tiny.make_examples(), Framed(), kind="seq2seq", prompt=prompt, max_reply_tokens=9)
    for text in texts_of(data.prompts, 3):
        assert (len(text), text[0], text[-1]) == (20, 7, EOS)


def test_with_a_template_messages_are_read_as_they_are_and_a_text_is_the_users() -> None:
    examples = tiny.make_examples()
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    examples.table["messages"] = ["[]", json.dumps(talk), *["[]"] * (len(examples.table) - 2)]
    prompt = PromptParams(max_tokens=200, too_long="refuse", template="chat")
    data, _ = tokenise_examples(examples, Framed(), kind="causal", prompt=prompt, max_reply_tokens=40)
    first, second = (BYTES.decode(texts_of(data.prompts, row)[0]) for row in (0, 1))
    assert first.startswith("[user title: ")
    assert first.endswith("what is number 0?]<")
    assert second == "[user hello][assistant hi]<"
    assert [BYTES.decode(text) for text in texts_of(data.references, 1)] == ["blue>", "i like blue>"]
