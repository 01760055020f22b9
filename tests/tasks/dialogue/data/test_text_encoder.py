"""A local encoder: mean over tokens, independent of padding and batches."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from tiny_dialogue import retrieval_params
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizerFast

from grpo_pipeline.tasks.dialogue.data.params import DenseParams
from grpo_pipeline.tasks.dialogue.data.retrieval import encode_texts, index_stories, retrieve_stories
from grpo_pipeline.tasks.dialogue.language_model.tokens import check_weights, read_tokenizer

TEXTS = ["cat", "a dog and a cat", "dog", "sun sun sun sun sun"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "and", "cat", "dog", "sun"]
    (path / "words.txt").write_text("\n".join(words))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=10,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=16,
        )
        BertModel(config).save_pretrained(path)
    BertTokenizerFast(vocab={word: place for place, word in enumerate(words)}).save_pretrained(path)
    return str(path)


def params(folder: str, **changes: int) -> DenseParams:
    return DenseParams(**{"folder": folder, "batch_size": 2, "max_tokens": 16, **changes})


def naive(folder: str, text: str) -> np.ndarray:
    """Encode one text alone, without padding, token by token."""
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state[0]
    mean = sum(states) / len(states)
    return (mean / mean.pow(2).sum().sqrt()).numpy()


def test_vectors_are_those_of_texts_alone(folder: str) -> None:
    found = encode_texts(TEXTS, params(folder))
    np.testing.assert_allclose(found, np.stack([naive(folder, text) for text in TEXTS]), atol=1e-6)
    np.testing.assert_allclose(encode_texts(TEXTS, params(folder, batch_size=3)), found, atol=1e-6)


def test_stories_are_found_by_the_nearest_vector(folder: str) -> None:
    dense = retrieval_params(encoder="dense", dense=params(folder), top_n=2)
    stories = pd.DataFrame({"story_id": list("abcd"), "title": "", "text": TEXTS, "persona_id": ""})
    queries = pd.DataFrame(
        {"persona": ["dog", "sun sun sun sun sun"], "persona_id": ["p", "q"], "partner_id": "", "context": "hi"}
    )
    index = index_stories(stories, dense)
    scores = [[float(naive(folder, q) @ naive(folder, t)) for t in TEXTS] for q in queries["persona"]]
    best = [[list("abcd")[place] for place in np.argsort(-np.round(row, 6), kind="stable")[:2]] for row in scores]
    assert retrieve_stories(index, queries, dense) == best
    assert [row[0] for row in best] == ["c", "d"]
    with pytest.raises(ValueError, match="encoder must be dense, which made the index, got tfidf"):
        retrieve_stories(index, queries, retrieval_params())


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"dense.folder must be a Hugging Face folder, got nothing at"):
        encode_texts(["x"], params(str(tmp_path / "none")))
    with pytest.raises(ValidationError, match="dense must be a section with encoder: dense, got null"):
        retrieval_params(encoder="dense")


def copy_with(folder: str, target: Path, **changes: object) -> Path:
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("read", [lambda path: encode_texts(TEXTS, params(str(path))), lambda path: read_tokenizer(str(path))])
def test_code_in_a_folder_is_never_run(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    # Where there is a terminal the library asks whether the code may run; the answer is y.
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    names = {"AutoConfig": "mine.Config", "AutoModel": "mine.Model", "AutoTokenizer": ["mine.Tokens", "mine.Tokens"]}
    path = copy_with(folder, tmp_path / "mine", model_type="mine", auto_map=names)
    (path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    for name in ("tokenizer_config.json",):
        told = json.loads((path / name).read_text()) | {"auto_map": names, "tokenizer_class": "Tokens"}
        (path / name).write_text(json.dumps(told))
    with pytest.raises(ValueError, match="code of its own, which is never run; give another model"):
        read(path)
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_pickles_is_refused(folder: str, tmp_path: Path) -> None:
    path = copy_with(folder, tmp_path / "pickles")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"must hold its weights as model.safetensors .*got the pickle pytorch_model.bin"):
        encode_texts(TEXTS, params(str(path)))
    with pytest.raises(FileNotFoundError, match="got the pickle pytorch_model.bin, which runs code"):
        check_weights(path)
