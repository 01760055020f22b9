"""Turn texts into padded rows of token ids with a mask; too long texts are refused or cut, by the parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

TooLong = Literal["refuse", "keep_start", "keep_end"]
Side = Literal["left", "right"]


class Tokenizer(Protocol):
    """Interface that a language model needs of a tokenizer.

    Attributes:
        size: number of ids; each id is below it.
        pad_id: id of padding; masked everywhere.
        eos_id: ends a text.
        end_ids: all ids that end a reply, ``eos_id`` first; a model may have been trained with several.
    """

    size: int
    pad_id: int
    eos_id: int
    end_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Encode a text as ids, without an end."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text; special ids are left out, bytes that are no text become U+FFFD."""
        ...


@dataclass(frozen=True)
class Tokens:
    """Texts as ids.

    Attributes:
        ids: int64 [B, T], ``pad_id`` outside the texts.
        is_token: bool [B, T], True where a token stands.
    """

    ids: Tensor
    is_token: Tensor


def encode_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    max_tokens: int,
    too_long: TooLong,
    with_end: bool = True,
    padding: Side = "right",
) -> Tokens:
    """Encode texts as a padded batch on the CPU, as wide as its longest text.

    Args:
        tokenizer: gives ids.
        texts: B texts; an empty text is its end alone.
        max_tokens: largest length of a row, its end included.
        too_long: ``refuse`` raises; ``keep_start`` drops the last tokens, ``keep_end`` the first ones. The end stays.
        with_end: put ``eos_id`` after each text.
        padding: the padded side.

    Raises:
        ValueError: if max_tokens leaves no room for a token, or a text is too long and is to be refused (names its row).
    """
    room = max_tokens - with_end
    if room < 1:
        raise ValueError(
            f"max_tokens must be at least {1 + with_end}, got {max_tokens}; leave room for one token"
        )
    end = [tokenizer.eos_id] if with_end else []
    rows = [
        _cut(tokenizer.encode(text), room, too_long, row) + end for row, text in enumerate(texts)
    ]
    return pad_rows(rows, pad_id=tokenizer.pad_id, padding=padding)


def pad_rows(rows: Sequence[Sequence[int]], *, pad_id: int, padding: Side = "right") -> Tokens:
    """Join rows of different lengths into a batch, as wide as the longest."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    width = int(lengths.max()) if len(rows) else 0
    place = torch.arange(width).expand(len(rows), width)  # [B, T]
    is_token = place < lengths[:, None] if padding == "right" else place >= width - lengths[:, None]
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    ids[is_token] = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
    return Tokens(ids, is_token)


def decode_rows(tokenizer: Tokenizer, ids: Tensor, is_token: Tensor) -> list[str]:
    """Decode each row to text: the ids [B, T] where is_token [B, T]."""
    pairs = zip(ids.tolist(), is_token.tolist(), strict=True)
    return [
        tokenizer.decode([token for token, keep in zip(*pair, strict=True) if keep])
        for pair in pairs
    ]


def _cut(ids: list[int], room: int, too_long: TooLong, row: int) -> list[int]:
    if len(ids) <= room:
        return ids
    if too_long == "refuse":
        raise ValueError(
            f"text {row} must have at most {room} tokens, got {len(ids)}; raise the limit, or choose keep_start or keep_end"
        )
    return ids[:room] if too_long == "keep_start" else ids[-room:]
