"""Turn texts into numbers of words without a vocabulary: each word is a row of a table that its hash names."""

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

WORDS = re.compile(r"\b\w\w+\b")
"""The words of scikit-learn's TF-IDF: two characters or more."""


class WordRows(NamedTuple):
    """Words of T texts.

    Attributes:
        rows: int64 [T, W], rows of the table; 0 where a text has fewer words.
        weights: float32 [T, W], counts of the rows divided by their length, 0 where a text has fewer.
    """

    rows: Tensor
    weights: Tensor


def word_rows(texts: Sequence[str], *, buckets: int) -> WordRows:
    """Find the rows of the words of each text, and how often it has them, with length 1 for each text."""
    counted = [
        Counter(zlib.crc32(word.encode()) % buckets for word in WORDS.findall(text.lower()))
        for text in texts
    ]
    width = max((len(counts) for counts in counted), default=0) or 1
    rows = torch.zeros(len(texts), width, dtype=torch.int64)
    weights = torch.zeros(len(texts), width)
    for place, counts in enumerate(counted):
        if counts:
            rows[place, : len(counts)] = torch.tensor(list(counts))
            found = torch.tensor([float(count) for count in counts.values()])
            weights[place, : len(counts)] = found / found.norm()
    return WordRows(rows, weights)
