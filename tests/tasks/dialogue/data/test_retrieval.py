"""Stories are found by the cosine that scikit-learn computes, too."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity
from tiny_dialogue import persona_params, retrieval_params
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizerFast

from grpo_pipeline.tasks.dialogue.data.examples import build_examples
from grpo_pipeline.tasks.dialogue.data.generated.generate import generate_rows, generate_stories
from grpo_pipeline.tasks.dialogue.data.params import DenseEncoder
from grpo_pipeline.tasks.dialogue.data.question import parse_question
from grpo_pipeline.tasks.dialogue.data.retrieval import retrieval_queries, retrieval_report, retrieve_stories
from grpo_pipeline.tasks.dialogue.data.story_index import StoryIndex, index_stories
from grpo_pipeline.tasks.dialogue.data.text_encoder import encode_texts
from grpo_pipeline.tasks.dialogue.language_model.folder_tokenizer import read_tokenizer
from grpo_pipeline.tasks.dialogue.language_model.safe_loading import check_weights


def corpus(*texts, owners=""):
    ids = [f"s{place}" for place in range(len(texts))]
    return pd.DataFrame({"story_id": ids, "title": "", "text": texts, "persona_id": owners})


def examples(*personas, **columns):
    base = {"persona": personas, "subject_id": [f"p{i}" for i in range(len(personas))], "partner_id": ""}
    return pd.DataFrame({**base, "context": "hi\nany dogs?", "columns": "{}", "messages": "[]", **columns})


def generated():
    params = persona_params()
    stories = pd.DataFrame(generate_stories(params)).rename(columns={"id": "story_id"}).assign(persona_id="")
    rows = generate_rows(params)
    table = examples(*(parse_question(row["question"])[0] for row in rows))
    return stories, table.assign(needs=[row["needs"] for row in rows], story_id=[row["story_id"] for row in rows])


def test_scores_are_those_of_scikit_learn_and_find_the_story_that_is_needed():
    stories, every = generated()
    params, table = retrieval_params(), every.iloc[::17]
    index = index_stories(stories, params)
    scores = (index.encode(retrieval_queries(table, params), params) @ index.matrix.T).toarray()
    documents = [f"{title} {text}" for title, text in zip(stories["title"], stories["text"], strict=True)]
    vectorizer = TfidfVectorizer().fit(documents)
    oracle = cosine_similarity(vectorizer.transform(table["persona"]), vectorizer.transform(documents))
    np.testing.assert_allclose(scores, oracle, atol=1e-12)
    best = [list(stories["story_id"].to_numpy()[np.argsort(-np.round(row, 9), kind="stable")[:2]]) for row in oracle]
    assert retrieve_stories(index, table, params) == best
    found = every.assign(story_ids=retrieve_stories(index, every, params), split="train")
    report = retrieval_report(found, stories=len(stories), params=params)
    assert report["by_split"]["all"]["recall_at_1"] == 1.0
    assert report["by_split"]["val"]["recall_at_1"] is None
    assert "reason" in report["by_split"]["val"]
    shifted = found.assign(story_ids=[["s", *ids[:1]] for ids in found["story_ids"]])
    report = retrieval_report(shifted, stories=len(stories), params=params)
    assert (report["by_split"]["train"]["recall_at_1"], report["by_split"]["train"]["recall_at_n"]) == (0.0, 1.0)


def test_scores_within_round_off_are_ties():
    stories = corpus("cat dog", "dog cat", "sun", "cat dog").sample(frac=1, random_state=3)
    index = index_stories(stories, retrieval_params())
    assert retrieve_stories(index, examples("the dog cat"), retrieval_params(top_n=4)) == [["s0", "s1", "s3", "s2"]]
    assert retrieve_stories(index, examples("nothing known"), retrieval_params(top_n=2)) == [["s0", "s1"]]
    matrix = csr_array(np.array([[1.0], [1.0 + 1e-12]]))
    index = StoryIndex("tfidf", ("s0", "s1"), ("", ""), matrix, {"cat": 0}, np.ones(1))
    assert retrieve_stories(index, examples("cat"), retrieval_params(top_n=2)) == [["s0", "s1"]]


def test_nobody_finds_a_story_of_either_speaker_and_the_last_turn_may_be_asked_too():
    index = index_stories(corpus("cat", "cat", "cat", "dog", owners=["p0", "q", "", "p1"]), retrieval_params())
    table = examples("cat", "cat", partner_id=["q", ""])
    assert retrieve_stories(index, table, retrieval_params()) == [["s2", "s3"], ["s0", "s1"]]
    pets = index_stories(corpus("cats", "dogs"), retrieval_params())
    for query, found in (("persona", "s0"), ("persona_and_last_turn", "s1")):
        assert retrieve_stories(pets, examples("birds"), retrieval_params(query=query, top_n=1)) == [[found]]
    with pytest.raises(ValueError, match="must have words of two or more characters"):
        index_stories(corpus("a", "!"), retrieval_params())
    with pytest.raises(ValueError, match="top_n must be at most 2, the stories left for a persona, got 3"):
        retrieve_stories(index, table, retrieval_params(top_n=3))


def test_examples_carry_their_split_and_their_stories():
    stories, params = corpus("dogs run", "cats nap"), retrieval_params(top_n=1)
    table = examples("i have cats", "i have dogs", "i have dogs", needs="unknown", story_id="", split="", row=1, question="q")
    table = table.assign(example_id=["a", "b", "c"], answers=[["x"]] * 3)
    splits = {"train": ["b"], "val": ["a"], "test": [], "left_out": ["c"]}
    built = build_examples(index_stories(stories, params), table, stories, splits, params)
    assert built.table[["example_id", "split", "story_ids"]].to_numpy().tolist() == [["a", "val", ["s1"]], ["b", "train", ["s0"]]]
    assert dict(zip(built.stories["story_id"], built.stories["text"], strict=True)) == {"s0": "dogs run", "s1": "cats nap"}
    other = build_examples(index_stories(stories, params), table.assign(answers=[["y"]] * 3), stories, splits, params)
    assert built.digest != other.digest
    with pytest.raises(ValueError, match="dialogue.splits must name every checked example"):
        build_examples(index_stories(stories, params), table, stories, splits | {"left_out": []}, params)
    with pytest.raises(ValueError, match="dialogue.index must be made of dialogue.stories"):
        build_examples(index_stories(stories.iloc[:1], params), table, stories, splits, params)


TEXTS = ["cat", "a dog and a cat", "dog", "sun sun sun sun sun"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "and", "cat", "dog", "sun"]
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(BertConfig(vocab_size=10, max_position_embeddings=16, **sizes)).save_pretrained(path)
    BertTokenizerFast(vocab={word: place for place, word in enumerate(words)}).save_pretrained(path)
    return str(path)


def params(folder: str, **changes: int) -> DenseEncoder:
    return DenseEncoder(**{"kind": "dense", "folder": folder, "batch_size": 2, "max_tokens": 16, **changes})


def test_stories_are_found_by_the_nearest_vector_of_texts_alone(folder: str) -> None:
    def naive(text: str) -> np.ndarray:
        """Encode one text alone, without padding, token by token."""
        tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
        with torch.no_grad():
            states = AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state[0]
        mean = sum(states) / len(states)
        return (mean / mean.pow(2).sum().sqrt()).numpy()

    alone = np.stack([naive(text) for text in TEXTS])
    for size in (2, 3):
        np.testing.assert_allclose(encode_texts(TEXTS, params(folder, batch_size=size)), alone, atol=1e-6)
    dense = retrieval_params(encoder=params(folder), top_n=2)
    index, queries = index_stories(corpus(*TEXTS), dense), examples("dog", TEXTS[3])
    best = np.argsort(-np.round(np.stack([naive(query) for query in queries["persona"]]) @ alone.T, 6), kind="stable")[:, :2]
    assert retrieve_stories(index, queries, dense) == [[f"s{place}" for place in row] for row in best]
    assert best[:, 0].tolist() == [2, 3]
    with pytest.raises(ValueError, match="encoder.kind must be dense, which made the index, got tfidf"):
        retrieve_stories(index, queries, retrieval_params())
    with pytest.raises(ValueError, match=r"encoder.folder must be a Hugging Face folder, got nothing at"):
        encode_texts(["x"], params(f"{folder}/none"))
    with pytest.raises(ValidationError, match=r"encoder.dense.folder\n.*Field required"):
        retrieval_params(encoder={"kind": "dense", "batch_size": 2, "max_tokens": 9})
    with pytest.raises(ValidationError, match=r"encoder.tfidf.folder"):
        retrieval_params(encoder={"kind": "tfidf", "folder": folder})


@pytest.mark.parametrize("read", [lambda path: encode_texts(TEXTS, params(str(path))), lambda path: read_tokenizer(str(path))])
def test_code_in_a_folder_is_never_run(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    # Where there is a terminal the library asks whether the code may run; the answer is y.
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    path = Path(shutil.copytree(folder, tmp_path / "mine"))
    names = {"AutoConfig": "mine.Config", "AutoModel": "mine.Model", "AutoTokenizer": ["mine.Tokens", "mine.Tokens"]}
    for name, told in (("config", {"model_type": "mine"}), ("tokenizer_config", {"tokenizer_class": "Tokens"})):
        file = path / f"{name}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | told | {"auto_map": names}))
    (path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(ValueError, match="code of its own, which is never run; give another model"):
        read(path)
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_pickles_is_refused(folder: str, tmp_path: Path) -> None:
    path = Path(shutil.copytree(folder, tmp_path / "pickles"))
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"must hold its weights as model.safetensors .*got the pickle pytorch_model.bin"):
        encode_texts(TEXTS, params(str(path)))
    with pytest.raises(FileNotFoundError, match="got the pickle pytorch_model.bin, which runs code"):
        check_weights(path)
