"""Hold texts as padded rows of token ids with a mask."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

Side = Literal["left", "right"]


class Tokenizer(Protocol):
    """Interface that a language model needs of a tokenizer.

    Attributes:
        size: number of ids; each id is below it.
        pad_id: id of padding; masked everywhere.
        eos_id: ends a text.
        end_ids: all ids that end a reply, ``eos_id`` first; a model may have been trained with several.
        begin_ids: what the model expects before every text that it reads; often nothing.
    """

    size: int
    pad_id: int
    eos_id: int
    end_ids: tuple[int, ...]
    begin_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Encode a text as ids, without an end."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], reply: str | None = None
    ) -> list[int]:
        """Encode a conversation in the form of the chat template: up to the model's turn, or with its reply.

        Raises:
            ValueError: if there is no template, or it refuses the messages.
        """
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
