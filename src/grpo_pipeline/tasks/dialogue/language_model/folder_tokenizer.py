"""Read the tokenizer of a Hugging Face folder on this machine; nothing is downloaded."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_pipeline.tasks.dialogue.language_model.safe_loading import LOCAL, refusing_code

FILES = ("tokenizer.json", "tokenizer_config.json", "spiece.model", "vocab.json")
# A tokenizer is read from one of ``FILES`` and from these. config.json names its class if no other file does.
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
    """A tokenizer of the library transformers with the interface ``tokens.Tokenizer``.

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
        self.begin_ids = begin_of(tokenizer)
        self.pad_id = self.eos_id if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)

    def encode(self, text: str) -> list[int]:
        """Encode a text as ids, without begin and end."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], reply: str | None = None
    ) -> list[int]:
        """Encode a conversation; see ``tokens.Tokenizer``."""
        name = self._tokenizer.name_or_path
        if not self._tokenizer.chat_template:
            raise ValueError(
                f"{name} must have a chat template for dialogue.prompt.template: chat, got none; add chat_template.jinja, or set "
                "template: null"
            )
        said = [] if reply is None else [{"role": "assistant", "content": reply}]
        try:
            text = self._tokenizer.apply_chat_template(
                [*map(dict, messages), *said], add_generation_prompt=reply is None, tokenize=False
            )
        except Exception as error:  # a template may raise any error
            raise ValueError(
                f"the chat template of {name} must accept the roles {[m['role'] for m in messages]}, got "
                f"{type(error).__name__}: {error}; change the messages, or set dialogue.prompt.template: null"
            ) from error
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text without special tokens; ids outside the vocabulary are left out."""
        known = [i for i in ids if i < self.size and i not in self.end_ids]
        return str(
            self._tokenizer.decode(
                known, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


def begin_of(tokenizer: Any) -> tuple[int, ...]:
    """Find the ids that the tokenizer puts before a text: Llama's and Gemma's begin, nothing for GPT-2 and T5."""
    plain, framed = (list(tokenizer.encode("a", add_special_tokens=s)) for s in (False, True))
    places = (p for p in range(len(framed)) if framed[p : p + len(plain)] == plain)
    return tuple(framed[: next(places, 0)])


def configured_ends(files: Mapping[str, bytes]) -> tuple[int, ...]:
    """Read the end ids from the configurations of a model's folder; each may name one or several.

    Raises:
        ValueError: if an id is no number. An id that the tokenizer lacks is allowed, but never drawn.
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
    # Imported here, because the byte-level tokenizer needs no library.
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
    # A damaged tokenizer may raise any error, even a bare Exception.
    except Exception as error:
        raise ValueError(
            f"{path} must hold a tokenizer that can be read, got {type(error).__name__}: {error}; copy it again"
        ) from error
    kept = {
        name: (path / name).read_bytes() for name in (*FILES, *BESIDE) if (path / name).is_file()
    }
    return FolderTokenizer(tokenizer, kept)
