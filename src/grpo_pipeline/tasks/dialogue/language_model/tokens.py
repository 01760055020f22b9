"""Turn texts into padded rows of token ids with a mask; too long texts are refused or cut as the parameters say."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

TooLong = Literal["refuse", "keep_start", "keep_end"]
Side = Literal["left", "right"]


class Tokenizer(Protocol):
    """Interface that a language model needs of a tokenizer.

    Attributes:
        size: number of ids; each id is below it.
        pad_id: fills rows up; never looked at, the mask says where.
        eos_id: ends a text.
        end_ids: all that end a reply, ``eos_id`` first: a model may have been trained to end with another one.
    """

    size: int
    pad_id: int
    eos_id: int
    end_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without an end."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; special ids are left out, bytes that are no text become U+FFFD."""
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
    """Turn texts into one padded batch on the CPU, as wide as its longest text.

    Args:
        tokenizer: gives ids.
        texts: B of them; an empty text is its end alone.
        max_tokens: of a row, its end included.
        too_long: ``refuse`` raises; ``keep_start`` drops the last tokens, ``keep_end`` the first ones. The end stays.
        with_end: put ``eos_id`` after each text.
        padding: the side that is filled up.

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
    """Put rows of different lengths into one batch, as wide as the longest."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    width = int(lengths.max()) if len(rows) else 0
    place = torch.arange(width).expand(len(rows), width)  # [B, T]
    is_token = place < lengths[:, None] if padding == "right" else place >= width - lengths[:, None]
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    ids[is_token] = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
    return Tokens(ids, is_token)


def decode_rows(tokenizer: Tokenizer, ids: Tensor, is_token: Tensor) -> list[str]:
    """Return the text of each row: of the ids [B, T] where is_token [B, T]."""
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


# Bytes as tokens: no vocabulary file, no unknown word.
#
#     id = byte + 3;      0 pad, 1 end, 2 unknown
#
# The ids of ByT5 (Xue et al., arXiv 2105.13626, section 3.1), without its 125 sentinel ids.

OFFSET = 3
PAD, EOS, UNKNOWN = range(OFFSET)


class ByteTokenizer:
    """UTF-8 bytes; see ``tokens.Tokenizer`` for the attributes."""

    size = 256 + OFFSET
    pad_id = PAD
    eos_id = EOS
    end_ids: tuple[int, ...] = (EOS,)

    def encode(self, text: str) -> list[int]:
        """Return one id per byte; half of a surrogate pair, which UTF-8 cannot hold, is written as "?"."""
        return [byte + OFFSET for byte in text.encode("utf-8", errors="replace")]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text; ids that stand for no byte are left out, bytes that are no UTF-8 become U+FFFD."""
        return bytes(i - OFFSET for i in ids if OFFSET <= i < self.size).decode(
            "utf-8", errors="replace"
        )


# A Hugging Face folder on this machine: what of it is read, and that nothing of it is run.

# Of every ``from_pretrained``: nothing is downloaded, and code that a folder holds is not run, also where a terminal could say y.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
# Of models: weights are tensors and nothing else.
SAFE: dict[str, Any] = LOCAL | {"use_safetensors": True}
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


def check_weights(folder: Path) -> None:
    """Check that a folder holds a model whose weights are safetensors.

    Raises:
        FileNotFoundError: if there is no configuration or no weights, or weights are pickles alone, which run code when they
            are read.
    """
    held = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    if "config.json" in held and any(name in held for name in WEIGHTS):
        return
    pickles = (
        sorted(entry.name for pattern in PICKLES for entry in folder.glob(pattern)) if held else []
    )
    if pickles:
        raise FileNotFoundError(
            f"{folder} must hold its weights as {WEIGHTS[0]} (or its shards), got the pickle {pickles[0]}, which runs code when "
            "it is read; where you trust its source convert it with save_pretrained(folder, safe_serialization=True)"
        )
    raise FileNotFoundError(
        f"{folder} must hold config.json and {WEIGHTS[0]} (or its shards), got {held or 'no folder'}; write it with "
        "save_pretrained"
    )


@contextmanager
def refusing_code(folder: Path) -> Iterator[None]:
    """Turn the library's refusal of a folder that asks for code of its own into one sentence.

    Raises:
        ValueError: that sentence.
    """
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error) and "custom code" not in str(error):
            raise
        raise ValueError(
            f"{folder} must be of a kind that the library transformers knows, got one with code of its own, which is never run; "
            "give another model"
        ) from error


# The tokenizer of a Hugging Face folder on this machine; nothing is downloaded.

FILES = ("tokenizer.json", "tokenizer_config.json", "spiece.model", "vocab.json")
# What a tokenizer is read from: one of those, and what stands beside it. config.json names its class where nothing else does.
BESIDE = (
    *(
        "added_tokens.json",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.model",
    ),
    "vocab.txt",
)


class FolderTokenizer:
    """A tokenizer of the library transformers behind ``tokens.Tokenizer``.

    Where it has no padding id (GPT-2, Llama) the end fills rows up: the mask says what is a token. A reply ends with every id
    that the tokenizer, ``config.json`` or ``generation_config.json`` calls an end.

    Args:
        tokenizer: as ``AutoTokenizer`` returns it.
        files: file name -> content, of what it was read from.

    Raises:
        ValueError: if it has no end, or a file names one that is no number.
    """

    def __init__(self, tokenizer: Any, files: Mapping[str, bytes]) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError(
                f"{tokenizer.name_or_path} must have an eos_token, got none; name one in tokenizer_config.json"
            )
        self._tokenizer, self.files = tokenizer, files
        self.size = len(tokenizer)
        self.eos_id = int(tokenizer.eos_token_id)
        self.end_ids = tuple(dict.fromkeys((self.eos_id, *configured_ends(files))))
        self.pad_id = self.eos_id if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)

    def encode(self, text: str) -> list[int]:
        """Return the ids, without begin and end."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text without special tokens; ids outside the vocabulary are left out."""
        known = [i for i in ids if i < self.size and i not in self.end_ids]
        return str(
            self._tokenizer.decode(
                known, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


def configured_ends(files: Mapping[str, bytes]) -> tuple[int, ...]:
    """Return the ids that the configurations of a model's folder call ends, one or a list in each.

    Raises:
        ValueError: if one is no number. One that the tokenizer lacks is never drawn, and ends nothing.
    """
    found: list[int] = []
    for name in ("config.json", "generation_config.json"):
        told = json.loads(files.get(name, b"{}")).get("eos_token_id")
        ends = told if isinstance(told, list) else [] if told is None else [told]
        if wrong := [end for end in ends if not isinstance(end, int)]:
            raise ValueError(
                f"eos_token_id of {name} must be a token id or a list of them, got {wrong}; correct it"
            )
        found += ends
    return tuple(found)


def read_tokenizer(folder: str) -> FolderTokenizer:
    """Read the tokenizer of a folder.

    Raises:
        FileNotFoundError: if the folder or its tokenizer is missing.
        ValueError: if it cannot be read, or has no end.
    """
    # Here and not above: the byte-level tokenizer needs no library.
    from transformers import AutoTokenizer

    path = Path(folder)
    if not any((path / name).is_file() for name in FILES):
        held = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else "no folder"
        raise FileNotFoundError(
            f"{path} must hold one of {', '.join(FILES)}, got {held}; write it with save_pretrained"
        )
    try:
        with refusing_code(path):
            tokenizer = AutoTokenizer.from_pretrained(str(path), **LOCAL)
    # A damaged tokenizer raises whatever its own reader of files raises, a bare Exception among them.
    except Exception as error:
        raise ValueError(
            f"{path} must hold a tokenizer that can be read, got {type(error).__name__}: {error}; copy it again"
        ) from error
    kept = {
        name: (path / name).read_bytes() for name in (*FILES, *BESIDE) if (path / name).is_file()
    }
    return FolderTokenizer(tokenizer, kept)


# Many texts as token ids in one array: tokenised once per data set, padded per batch, without a loop over tokens.


@dataclass(frozen=True)
class TokenTable:
    """Rows of texts, each of its own length.

    Attributes:
        ids: int32 [T], all tokens behind each other.
        text_starts: int64 [K + 1], text k holds ids[text_starts[k] : text_starts[k + 1]].
        row_starts: int64 [R + 1], row r holds the texts row_starts[r], …, row_starts[r + 1] - 1.
    """

    ids: np.ndarray
    text_starts: np.ndarray
    row_starts: np.ndarray

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each text, int64 [K]."""
        return np.diff(self.text_starts)

    def texts_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of the texts of these rows, int64 [P, n]; the rows must hold n texts each."""
        first = self.row_starts[rows]  # [P]
        count = int(self.row_starts[rows[0] + 1] - first[0]) if len(rows) else 0
        # The texts of a row stand behind each other: [P, 1] + [n] -> [P, n].
        return np.asarray(first[:, None] + np.arange(count))

    def draw_texts(self, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Return one text of each row, int64 [P]; draws [P] in [0, 1) choose it, 0 the first one."""
        counts = self.row_starts[rows + 1] - self.row_starts[rows]
        return np.asarray(self.row_starts[rows] + (draws * counts).astype(np.int64))

    def padded(self, texts: np.ndarray, *, pad_id: int, padding: Side) -> Tokens:
        """Return the texts [...] as ids and is_token [..., S], as wide as the longest of them."""
        starts, lengths = (
            self.text_starts[texts][..., None],  # [..., 1]
            (self.text_starts[texts + 1] - self.text_starts[texts])[..., None],
        )
        width = int(lengths.max())
        place = np.arange(width) if padding == "right" else np.arange(width) - (width - lengths)
        is_token = (place >= 0) & (place < lengths)  # [..., S]
        # Padding reads token 0 of the table, so that no index is outside, and is then replaced.
        ids = np.where(is_token, self.ids[np.where(is_token, starts + place, 0)], pad_id)
        return Tokens(torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(is_token))


def stack_rows(rows: Sequence[Sequence[Sequence[int]]]) -> TokenTable:
    """Put rows of texts of ids into one table."""
    texts = [text for row in rows for text in row]
    ids = np.fromiter((token for text in texts for token in text), dtype=np.int32)
    return TokenTable(
        ids, _starts([len(text) for text in texts]), _starts([len(row) for row in rows])
    )


def _starts(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)
