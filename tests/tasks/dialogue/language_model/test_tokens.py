import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import ByteTokenizer
from grpo_pipeline.tasks.dialogue.language_model.folder_tokenizer import read_tokenizer
from grpo_pipeline.tasks.dialogue.language_model.safe_loading import check_weights
from grpo_pipeline.tasks.dialogue.language_model.token_table import stack_rows
from grpo_pipeline.tasks.dialogue.language_model.tokens import decode_rows, pad_rows

TOKENIZER = ByteTokenizer()


def test_a_batch_is_padded_and_read_back() -> None:
    # a = 97 -> 100, b = 98 -> 101; é = C3 A9 = 195, 169 -> 198, 172; 1 is the end
    tokens = pad_rows([[*TOKENIZER.encode(text), TOKENIZER.eos_id] for text in ("ab", "", "é")], pad_id=0)
    assert tokens.ids.tolist() == [[100, 101, 1], [1, 0, 0], [198, 172, 1]]
    assert tokens.is_token.tolist() == [[True] * 3, [True, False, False], [True] * 3]
    assert decode_rows(TOKENIZER, tokens.ids, tokens.is_token) == ["ab", "", "é"]
    tokens = pad_rows([TOKENIZER.encode(text) for text in ("a", "bcd")], pad_id=0, padding="left")
    assert tokens.ids.tolist() == [[0, 0, 100], [101, 102, 103]]
    assert tokens.is_token.tolist() == [[False, False, True], [True, True, True]]
    assert decode_rows(TOKENIZER, torch.tensor([[100, 101, 102]]), torch.tensor([[True, False, True]])) == ["ac"]
    assert pad_rows([[5], []], pad_id=7).ids.tolist() == [[5], [7]]


TEXTS = st.lists(st.integers(1, 300), max_size=6)
ROWS = st.lists(st.lists(TEXTS, min_size=2, max_size=2), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from(["left", "right"]))
def test_padded_texts_are_those_of_a_loop(rows: list[list[list[int]]], padding: str) -> None:
    table, texts = stack_rows(rows), [text for row in rows[::-1] for text in row]
    found = table.padded(table.texts_of(np.arange(len(rows))[::-1]), pad_id=7, padding=padding)
    expected = pad_rows(texts, pad_id=7, padding=padding)
    assert torch.equal(found.ids.flatten(0, 1), expected.ids)
    assert torch.equal(found.is_token.flatten(0, 1), expected.is_token)
    assert table.lengths().tolist() == [len(text) for row in rows for text in row]


def test_a_text_of_each_row_is_drawn() -> None:
    table = stack_rows([[[1], [2], [3]], [[4]]])
    for draw, expected in ((0.0, [0, 3]), (0.34, [1, 3]), (0.67, [2, 3]), (0.999, [2, 3])):
        assert table.draw_texts(np.array([0, 1]), np.array([draw, draw])).tolist() == expected


@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    kept = text.encode("utf-8", errors="replace").decode("utf-8")
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == kept


def test_ids_of_bytes(tmp_path: Path) -> None:
    text = "i'm fine — ça va? 😀"
    assert TOKENIZER.encode(text) == ByT5Tokenizer()(text, add_special_tokens=False).input_ids
    # 0xC3 begins a character of two bytes; 0, 1, 2 and 259 stand for no byte
    assert TOKENIZER.decode([0, 100, 1, 0xC3 + 3, 2, 101, 259, 258]) == "a\ufffdb\ufffd"
    assert TOKENIZER.size == 259
    ByT5Tokenizer().save_pretrained(tmp_path)
    read = read_tokenizer(str(tmp_path))
    assert (read.pad_id, read.eos_id, read.encode("ab"), read.decode([100, 101, 1])) == (0, 1, [100, 101], "ab")


def save(folder: Path, **special: str) -> None:
    words = Tokenizer(models.WordLevel({"<eos>": 0, "hello": 1, "you": 2, "<unk>": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **special).save_pretrained(folder)


def test_a_tokenizer_of_words_without_padding_and_what_is_missing_or_broken(tmp_path: Path) -> None:
    save(tmp_path, eos_token="<eos>")
    read = read_tokenizer(str(tmp_path))
    assert (read.size, read.eos_id, read.pad_id) == (4, 0, 0)
    assert (read.encode("hello you hello"), read.decode([1, 2, 0, 99])) == ([1, 2, 1], "hello you")
    with pytest.raises(FileNotFoundError, match=r"must hold one of tokenizer.json, .*, got no folder; write it"):
        read_tokenizer(str(tmp_path / "nowhere"))
    save(tmp_path)
    with pytest.raises(ValueError, match=r"must have an eos_token, got none; name one"):
        read_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"must hold a tokenizer that can be read, got .*; copy it again"):
        read_tokenizer(str(tmp_path))


def test_every_configured_end_ends_a_reply_and_is_left_out_of_its_text(tmp_path: Path) -> None:
    save(tmp_path, eos_token="<eos>")
    for configuration, generation, ends in ((None, None, (0,)), (2, None, (0, 2)), ([2, 0], [3], (0, 2, 3)), (None, 3, (0, 3))):
        for name, told in (("config.json", configuration), ("generation_config.json", generation)):
            (tmp_path / name).write_text(json.dumps({"model_type": "llama", "eos_token_id": told}))
        read = read_tokenizer(str(tmp_path))
        assert (read.eos_id, read.end_ids) == (0, ends)
        assert read.decode([1, 2, 0]) == ("hello" if 2 in ends else "hello you")
        assert "generation_config.json" in read.files  # an exported model ends its replies alike
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "<eos>"}')
    with pytest.raises(ValueError, match=r"eos_token_id of generation_config.json must be a token id or a list of them"):
        read_tokenizer(str(tmp_path))


def test_an_adapter_is_told_to_be_merged(tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(FileNotFoundError, match="must hold a whole model, got an adapter, .* merge them"):
        check_weights(tmp_path)
