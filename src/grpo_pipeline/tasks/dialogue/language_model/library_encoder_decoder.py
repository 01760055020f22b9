"""Score and write replies with any encoder-decoder of transformers, by its own forward pass and key-value cache.

Texts of a prompt are read one by one and their outputs joined (Fusion-in-Decoder), as in ``encoder_decoder.py``. That module
computes keys and values of the joined outputs once per prompt, for T5; here they are computed for each reply.

Axes: P prompts, n texts of each, G replies, S tokens of a text, T tokens of a reply, D width, V choices; rows n = p * G + g.
"""

from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from grpo_pipeline.tasks.dialogue.language_model.base import (
    Encoded,
    check_prompts,
    memory_of,
    shifted,
)
from grpo_pipeline.tasks.dialogue.language_model.library_head import LibraryModel


class LibrarySeq2Seq(LibraryModel):
    """An encoder-decoder of transformers.

    Args:
        model: has a head and no dropout.
    """

    kind = "seq2seq"

    def encode(self, ids: Tensor, is_token: Tensor) -> Encoded:
        """Read n texts of each prompt, int64 and bool [P, n, S]; a text that is all padding counts as absent."""
        check_prompts(ids, is_token)
        flat, seen = ids.flatten(0, 1), is_token.flatten(0, 1)  # [P * n, S]
        # A text of padding alone would attend to nothing: it sees itself, and no reply sees it.
        seen = seen | ~seen.any(dim=1, keepdim=True)
        read = self.run(self.model.get_encoder(), input_ids=flat, attention_mask=seen.long())
        memory = read.last_hidden_state.view(len(ids), -1, read.last_hidden_state.shape[-1])
        start = ids.new_full((len(ids),), self.model.config.decoder_start_token_id)
        return Encoded(start, is_token.flatten(1), memory=memory)  # memory: [P, n * S, D]

    def hidden(self, encoded: Encoded, replies: Tensor) -> Tensor:
        """See ``LanguageModel.hidden``; logits [P, G, T, V] where ``head`` is None."""
        inputs = shifted(encoded, replies)  # [P * G, T]
        memory, seen = repeated_memory(encoded, replies.shape[1])
        return self.forward_through(inputs, memory, seen, None).view(*replies.shape, -1)

    def begin(self, encoded: Encoded, group_size: int) -> "LibrarySeq2SeqDecoding":
        """See ``LanguageModel.begin``."""
        return LibrarySeq2SeqDecoding(self, encoded, group_size)

    def check_room(self, encoded: Encoded, max_tokens: int) -> None:
        """Check that a reply fits the decoder's positions; see ``LanguageModel.check_room``."""
        limit = self.positions
        if limit is not None and max_tokens > limit:
            raise ValueError(
                f"a reply must have at most {limit} tokens, the positions of the decoder, got {max_tokens}; allow shorter replies"
            )

    def forward_through(
        self, tokens: Tensor, memory: Tensor, is_seen: Tensor, cache: EncoderDecoderCache | None
    ) -> Tensor:
        """Decode tokens int64 [N, T]: states [N, T, D] or logits [N, T, V] that predict the next ones; a cache grows."""
        network = self.model if self.gives_logits else self.model.base_model
        found = self.run(
            network,
            encoder_outputs=BaseModelOutput(last_hidden_state=memory),
            attention_mask=is_seen.long(),
            decoder_input_ids=tokens,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        states: Tensor = found.logits if self.gives_logits else found.last_hidden_state
        return states


class LibrarySeq2SeqDecoding:
    """See ``base.Decoding``: the library's cache, with a row per reply."""

    def __init__(self, language_model: LibrarySeq2Seq, encoded: Encoded, group_size: int) -> None:
        self._language_model, self._group_size = language_model, group_size
        self._memory, self._is_seen = repeated_memory(encoded, group_size)
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())

    def step(self, tokens: Tensor) -> Tensor:
        """See ``Decoding.step``."""
        states = self._language_model.forward_through(
            tokens.reshape(-1, 1), self._memory, self._is_seen, self._cache
        )  # [P * G, 1, D or V]
        return states.view(*tokens.shape, -1)

    def keep(self, prompts: Tensor, places: Tensor) -> None:
        """See ``Decoding.keep``."""
        rows = (prompts[:, None] * self._group_size + places).flatten()  # [P' * G']
        self._group_size = places.shape[1]
        self._memory, self._is_seen = self._memory[rows], self._is_seen[rows]
        self._cache.batch_select_indices(rows)


def repeated_memory(encoded: Encoded, group_size: int) -> tuple[Tensor, Tensor]:
    """Copy an encoding for each reply: memory [P * G, S, D] and its seen places [P * G, S]."""
    memory = memory_of(encoded).repeat_interleave(group_size, dim=0)
    return memory, encoded.is_seen.repeat_interleave(group_size, dim=0)
