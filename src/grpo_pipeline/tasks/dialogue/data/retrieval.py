"""Find the stories that fit a persona and the last turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfVectorizer

from grpo_pipeline.tasks.dialogue.data.params import DenseParams, RetrievalParams
from grpo_pipeline.tasks.dialogue.language_model.tokens import (
    LOCAL,
    SAFE,
    check_weights,
    refusing_code,
)

# Texts as vectors of a local Hugging Face encoder: mean over tokens, length 1.


@torch.no_grad()
def encode_texts(texts: Sequence[str], params: DenseParams) -> np.ndarray:
    """Return one vector per text, [T, D] float32.

        v = sum_i m[i] h[i] / sum_i m[i],  divided by its length;  h the last hidden states, m the attention mask

    Source of the pooling: Reimers and Gurevych, Sentence-BERT, arXiv 1908.10084, section 3. Padding changes nothing, so that
    a vector does not depend on the batch it is computed in, up to round-off.

    Raises:
        FileNotFoundError: if its weights are no safetensors.
        ValueError: if the folder is not there, or asks for code of its own.
    """
    folder = Path(params.folder)
    if not folder.is_dir():
        raise ValueError(
            f"dialogue.retrieval.dense.folder must be a Hugging Face folder, got nothing at {params.folder!r}; correct the path"
        )
    check_weights(folder)
    from transformers import AutoModel, AutoTokenizer  # heavy, and only needed here

    with refusing_code(folder):
        tokenizer = AutoTokenizer.from_pretrained(params.folder, **LOCAL)
        model = AutoModel.from_pretrained(params.folder, **SAFE).eval()
    rows = []
    for start in range(0, len(texts), params.batch_size):
        part = list(texts[start : start + params.batch_size])
        tokens = tokenizer(
            part, padding=True, truncation=True, max_length=params.max_tokens, return_tensors="pt"
        )
        hidden = model(**tokens).last_hidden_state.float()  # [T, I, D]
        weights = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)  # 0 for padding
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)  # [T, D]
        rows.append(torch.nn.functional.normalize(mean, dim=-1))
    return torch.cat(rows).numpy()


# An index of the story corpus, without pickles: what a query is compared with.


@dataclass(frozen=True)
class StoryIndex:
    """Stories as rows of length 1.

    Attributes:
        encoder: what made the rows.
        story_ids: sorted; row s of the matrix is story s.
        owners: persona id that a story is made of, "" if it is none; it is never found for that persona.
        matrix: [S, D], sparse with ``tfidf``.
        vocabulary: term -> column, empty with ``dense``.
        idf: [D] inverse document frequencies, empty with ``dense``.
    """

    encoder: Literal["tfidf", "dense"]
    story_ids: tuple[str, ...]
    owners: tuple[str, ...]
    matrix: csr_array | np.ndarray
    vocabulary: dict[str, int]
    idf: np.ndarray

    def encode(self, queries: list[str], params: RetrievalParams) -> csr_array | np.ndarray:
        """Return queries as rows of length 1, [Q, D]; a query without a known term is 0 with ``tfidf``.

        Raises:
            ValueError: if the index was made by another encoder than the parameters name.
        """
        if params.encoder != self.encoder:
            raise ValueError(
                f"dialogue.retrieval.encoder must be {self.encoder}, which made the index, got {params.encoder}; index again"
            )
        if params.dense is not None:
            return encode_texts(queries, params.dense)
        vectorizer = TfidfVectorizer(vocabulary=self.vocabulary)
        vectorizer.idf_ = self.idf
        return csr_array(vectorizer.transform(queries))


def index_stories(stories: pd.DataFrame, params: RetrievalParams) -> StoryIndex:
    """Index the corpus.

    TF-IDF as scikit-learn's ``TfidfVectorizer`` has it by default: words of two or more characters, lower case, and

        weight[s, t] = count(t in s) * (ln((1 + S) / (1 + stories with t)) + 1), each row divided by its length

    Raises:
        ValueError: if no story has a word.
    """
    ordered = stories.sort_values("story_id")
    ids, owners = tuple(ordered["story_id"]), tuple(ordered["persona_id"])
    documents = [
        f"{title} {text}".strip()
        for title, text in zip(ordered["title"], ordered["text"], strict=True)
    ]
    if params.dense is not None:
        return StoryIndex(
            "dense", ids, owners, encode_texts(documents, params.dense), {}, np.empty(0)
        )
    vectorizer = TfidfVectorizer()
    try:
        matrix = csr_array(vectorizer.fit_transform(documents))
    except ValueError as error:
        raise ValueError(
            f"the story corpus must have words of two or more characters, got none ({error}); add stories"
        ) from error
    vocabulary = {str(term): int(column) for term, column in sorted(vectorizer.vocabulary_.items())}
    return StoryIndex("tfidf", ids, owners, matrix, vocabulary, np.asarray(vectorizer.idf_))


# Equal scores that differ by round-off are ties (test_scores_within_round_off_are_ties).
DECIMALS = 9
CHUNK = 512


def retrieval_queries(checked: pd.DataFrame, params: RetrievalParams) -> list[str]:
    """Return what is searched for each example: its persona, with the last turn of its context if so asked."""
    if params.query == "persona":
        return list(checked["persona"])
    last = checked["context"].map(lambda context: context.split("\n")[-1])
    return [f"{persona} {turn}" for persona, turn in zip(checked["persona"], last, strict=True)]


def retrieve_stories(
    index: StoryIndex, checked: pd.DataFrame, params: RetrievalParams
) -> list[list[str]]:
    """Return the ids of the ``top_n`` stories of each example, best first.

        score[q, s] = <query[q], story[s]>, the cosine; ties go by story id

    A story that is made of the persona of the example, or of the other speaker's, is never found.

    Raises:
        ValueError: if fewer than ``top_n`` stories are left for an example.
    """
    keys = list(
        zip(
            retrieval_queries(checked, params),
            checked["persona_id"],
            checked["partner_id"],
            strict=True,
        )
    )
    distinct = sorted(set(keys))
    found: dict[tuple[str, str, str], list[str]] = {}
    for start in range(0, len(distinct), CHUNK):
        part = distinct[start : start + CHUNK]
        found.update(zip(part, rank(index, part, params), strict=True))
    return [found[key] for key in keys]


def rank(
    index: StoryIndex, keys: Sequence[tuple[str, str, str]], params: RetrievalParams
) -> list[list[str]]:
    """Rank the stories for a few (query, persona id, partner id); see ``retrieve_stories``."""
    queries, owners = [query for query, _, _ in keys], np.array(index.owners)
    product = index.encode(queries, params) @ index.matrix.T
    scores = np.round(
        np.asarray(
            product if isinstance(product, np.ndarray) else product.toarray(), dtype=np.float64
        ),
        DECIMALS,
    )
    # No story of the two people who talk is retrieved; a story without an owner belongs to nobody.
    involved = np.array([key[1:] for key in keys])  # [Q, 2], Q keys
    # [Q, 2, 1] == [1, 1, stories] -> [Q, stories].
    is_own = (involved[:, :, None] == owners[None, None, :]).any(axis=1) & (owners != "")[None, :]
    left = len(index.story_ids) - int(is_own.sum(axis=1).max())
    if left < params.top_n:
        raise ValueError(
            f"dialogue.retrieval.top_n must be at most {left}, the stories left for a persona, got {params.top_n}; lower it"
        )
    scores[is_own] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, : params.top_n]  # [Q, top_n]
    ids = np.array(index.story_ids, dtype=object)
    return [list(row) for row in ids[order]]


def retrieval_report(
    examples: pd.DataFrame, *, stories: int, params: RetrievalParams
) -> dict[str, object]:
    """Say how often the story that a reply needs is found.

        recall@k = share of the examples with needs "story" whose story is among the first k

    Args:
        examples: with the columns ``needs, story_id, split, story_ids``.
        stories: size of the corpus.
        params: the ``dialogue.retrieval`` parameters.

    Returns:
        ``by_split``: n, ``recall_at_1`` and ``recall_at_n``; null with a reason where no reply is known to need a story.
    """
    parts = {name: examples[examples["split"] == name] for name in ("train", "val", "test")}
    by_split = {
        name: recall(part[part["needs"] == "story"])
        for name, part in [*parts.items(), ("all", examples)]
    }
    return {
        "encoder": params.encoder,
        "query": params.query,
        "top_n": params.top_n,
        "stories": stories,
        "by_split": by_split,
    }


def recall(needing: pd.DataFrame) -> dict[str, object]:
    """Return the recall over examples that need a story."""
    if needing.empty:
        return {
            "n": 0,
            "recall_at_1": None,
            "recall_at_n": None,
            "reason": "no reply is known to need a story",
        }
    pairs = list(zip(needing["story_id"], needing["story_ids"], strict=True))
    first, any_of = (
        float(np.mean(hits))
        for hits in ([s == ids[0] for s, ids in pairs], [s in ids for s, ids in pairs])
    )
    return {"n": len(pairs), "recall_at_1": first, "recall_at_n": any_of}
