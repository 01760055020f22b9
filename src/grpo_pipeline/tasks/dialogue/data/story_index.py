"""Index the story corpus as vectors that queries are compared with, stored without pickles."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfVectorizer

from grpo_pipeline.tasks.dialogue.data.params import DenseEncoder, RetrievalParams
from grpo_pipeline.tasks.dialogue.data.text_encoder import encode_texts


@dataclass(frozen=True)
class StoryIndex:
    """Stories as rows of length 1.

    Attributes:
        encoder: method that made the rows.
        story_ids: sorted; row s of the matrix is story s.
        owners: id of the persona that a story is made from, or ""; the story is never found for that persona.
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
        """Encode queries as rows of length 1, [Q, D]; with ``tfidf``, a query without a known term is 0.

        Raises:
            ValueError: if the index was made by another encoder than the parameters name.
        """
        if params.encoder.kind != self.encoder:
            raise ValueError(
                f"dialogue.retrieval.encoder.kind must be {self.encoder}, which made the index, got {params.encoder.kind}; index "
                "again"
            )
        if isinstance(params.encoder, DenseEncoder):
            return encode_texts(queries, params.encoder)
        vectorizer = TfidfVectorizer(vocabulary=self.vocabulary)
        vectorizer.idf_ = self.idf
        return csr_array(vectorizer.transform(queries))


def index_stories(stories: pd.DataFrame, params: RetrievalParams) -> StoryIndex:
    """Index the corpus.

    TF-IDF as scikit-learn's ``TfidfVectorizer`` has it by default: words of two or more characters, lower case, and

        weight[s, t] = count(t in s) * (ln((1 + S) / (1 + stories with t)) + 1), each row divided by its length

    Without stories the index is empty, and nothing is found.

    Raises:
        ValueError: if no story has a word.
    """
    if stories.empty:
        return StoryIndex(params.encoder.kind, (), (), np.empty((0, 0)), {}, np.empty(0))
    ordered = stories.sort_values("story_id")
    ids, owners = tuple(ordered["story_id"]), tuple(ordered["persona_id"])
    documents = [
        f"{title} {text}".strip()
        for title, text in zip(ordered["title"], ordered["text"], strict=True)
    ]
    if isinstance(params.encoder, DenseEncoder):
        return StoryIndex(
            "dense", ids, owners, encode_texts(documents, params.encoder), {}, np.empty(0)
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
