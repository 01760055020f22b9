"""Store many texts as token ids in a single array.

Texts are tokenised once per data set and padded per batch, without a loop over tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from grpo_pipeline.tasks.dialogue.language_model.tokens import Side, Tokens


@dataclass(frozen=True)
class TokenTable:
    """Rows of texts, each of its own length.

    Attributes:
        ids: int32 [T], the tokens of all texts in order.
        text_starts: int64 [K + 1], text k holds ids[text_starts[k] : text_starts[k + 1]].
        row_starts: int64 [R + 1], row r holds the texts row_starts[r], …, row_starts[r + 1] - 1.
    """

    ids: np.ndarray
    text_starts: np.ndarray
    row_starts: np.ndarray

    def lengths(self) -> np.ndarray:
        """Compute the number of tokens of each text, int64 [K]."""
        return np.diff(self.text_starts)

    def texts_of(self, rows: np.ndarray) -> np.ndarray:
        """Find the numbers of the texts of these rows, int64 [P, n]; the rows must hold n texts each."""
        first = self.row_starts[rows]  # [P]
        count = int(self.row_starts[rows[0] + 1] - first[0]) if len(rows) else 0
        # The texts of a row are adjacent: [P, 1] + [n] -> [P, n].
        return np.asarray(first[:, None] + np.arange(count))

    def draw_texts(self, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Choose a text of each row, int64 [P], by draws [P] in [0, 1); 0 gives the first text."""
        counts = self.row_starts[rows + 1] - self.row_starts[rows]
        return np.asarray(self.row_starts[rows] + (draws * counts).astype(np.int64))

    def padded(self, texts: np.ndarray, *, pad_id: int, padding: Side) -> Tokens:
        """Pad the texts [...] to ids and is_token [..., S], as wide as the longest of them."""
        starts, lengths = (
            self.text_starts[texts][..., None],  # [..., 1]
            (self.text_starts[texts + 1] - self.text_starts[texts])[..., None],
        )
        width = int(lengths.max())
        place = np.arange(width) if padding == "right" else np.arange(width) - (width - lengths)
        is_token = (place >= 0) & (place < lengths)  # [..., S]
        # Padding first reads token 0 of the table, so that every index is valid, and is then replaced.
        ids = np.where(is_token, self.ids[np.where(is_token, starts + place, 0)], pad_id)
        return Tokens(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(is_token))


def stack_rows(rows: Sequence[Sequence[Sequence[int]]]) -> TokenTable:
    """Join rows of texts of ids into a single table."""
    texts = [text for row in rows for text in row]
    ids = np.fromiter((token for text in texts for token in text), dtype=np.int32)
    return TokenTable(
        ids, _starts([len(text) for text in texts]), _starts([len(row) for row in rows])
    )


def _starts(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)
