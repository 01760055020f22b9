from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from grpo_pipeline.tasks.dialogue.language_model.tokens import read_tokenizer

WORDS = {"<eos>": 0, "hello": 1, "you": 2, "<unk>": 3}


def save(folder: Path, **special: str) -> None:
    words = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **special).save_pretrained(folder)


def test_a_tokenizer_of_words_without_padding(tmp_path: Path) -> None:
    save(tmp_path, eos_token="<eos>")
    tokenizer = read_tokenizer(str(tmp_path))
    assert (tokenizer.size, tokenizer.eos_id, tokenizer.pad_id) == (4, 0, 0)
    assert tokenizer.encode("hello you hello") == [1, 2, 1]
    assert tokenizer.decode([1, 2, 0, 99]) == "hello you"


def test_that_of_byt5(tmp_path: Path) -> None:
    ByT5Tokenizer().save_pretrained(tmp_path)
    tokenizer = read_tokenizer(str(tmp_path))
    assert (tokenizer.pad_id, tokenizer.eos_id) == (0, 1)
    assert tokenizer.encode("ab") == [100, 101]
    assert tokenizer.decode([100, 101, 1]) == "ab"


def test_what_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must hold one of tokenizer.json, .*, got no folder; write it"):
        read_tokenizer(str(tmp_path / "nowhere"))
    save(tmp_path)
    with pytest.raises(ValueError, match=r"must have an eos_token, got none; name one"):
        read_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"must hold a tokenizer that can be read, got .*; copy it again"):
        read_tokenizer(str(tmp_path))
