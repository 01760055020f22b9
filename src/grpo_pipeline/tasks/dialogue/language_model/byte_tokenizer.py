"""Tokenise texts as bytes: no vocabulary file, no unknown word.

    id = byte + 3;      0 pad, 1 end, 2 unknown

The ids are those of ByT5 (Xue et al., arXiv 2105.13626, section 3.1), without its 125 sentinel ids.
"""

from collections.abc import Mapping, Sequence

OFFSET = 3
PAD, EOS, UNKNOWN = range(OFFSET)


class ByteTokenizer:
    """UTF-8 bytes; see ``tokens.Tokenizer`` for the attributes."""

    size = 256 + OFFSET
    pad_id = PAD
    eos_id = EOS
    end_ids: tuple[int, ...] = (EOS,)
    begin_ids: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        """Encode each byte as an id; half of a surrogate pair, which UTF-8 cannot hold, becomes "?"."""
        return [byte + OFFSET for byte in text.encode("utf-8", errors="replace")]

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], reply: str | None = None
    ) -> list[int]:
        """Refuse: bytes have no chat template."""
        raise ValueError(
            "dialogue.prompt.template must be null for the tokenizer bytes, which has no chat template, got chat; read that of a "
            "folder, network.tokenizer: folder"
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text; ids of no byte are left out, bytes that are no UTF-8 become U+FFFD."""
        return bytes(i - OFFSET for i in ids if OFFSET <= i < self.size).decode(
            "utf-8", errors="replace"
        )
