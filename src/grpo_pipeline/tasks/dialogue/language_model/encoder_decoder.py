"""Score and write replies with encoder-decoder models such as T5: texts are encoded separately, and replies attend to all.

    memory = [encoder(text 1), …, encoder(text n)]  [P, n*S, D]
    hidden = decoder(start, reply; cross-attention to memory)

Source: Izacard and Grave, arXiv 2007.01282, section 3. How this differs from public versions: the keys and values of the
cross-attention are computed once per prompt for all of its replies (``shared_attention``).
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from grpo_pipeline.tasks.dialogue.language_model.attention import (
    NAME,
    additive_mask,
    causal_mask,
    register,
)
from grpo_pipeline.tasks.dialogue.language_model.base import (
    Encoded,
    LanguageModel,
    check_prompts,
    memory_of,
    shifted,
)


class Seq2SeqModel(LanguageModel):
    """A T5 or ByT5 as a language model.

    Args:
        model: a ``T5ForConditionalGeneration``; its attention is replaced.
    """

    kind = "seq2seq"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        register()
        model.set_attn_implementation(NAME)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the model in another process, and register the attention with its transformers."""
        register()
        super().__setstate__(state)  # type: ignore[no-untyped-call]

    def encode(self, ids: Tensor, is_token: Tensor) -> Encoded:
        """Read n texts of each prompt, int64 and bool [P, n, S]; a text that is all padding counts as absent."""
        check_prompts(ids, is_token)
        prompts, texts, width = ids.shape
        flat, seen = ids.flatten(0, 1), is_token.flatten(0, 1)  # [P * n, S]
        mask = additive_mask(seen, self.model.dtype)[:, None, None]  # [P * n, 1, 1, S]
        # Encoded text by text, then joined to a memory for each prompt: [P * n, S, D] -> [P, n * S, D].
        read = self.run(self.model.encoder, input_ids=flat, attention_mask=mask)
        memory = read.last_hidden_state
        start = ids.new_full((prompts,), self.model.config.decoder_start_token_id)
        return Encoded(start, is_token.flatten(1), memory=memory.view(prompts, texts * width, -1))

    def hidden(self, encoded: Encoded, replies: Tensor) -> Tensor:
        """See ``LanguageModel.hidden``."""
        inputs = shifted(encoded, replies)  # [P * G, T]
        states: Tensor = self.run(
            self.model.decoder,
            input_ids=inputs,
            attention_mask=causal_mask(inputs.shape[1], memory_of(encoded)),
            encoder_hidden_states=encoded.memory,
            encoder_attention_mask=self.memory_mask(encoded),
            use_cache=False,
        ).last_hidden_state  # [P * G, T, D]
        return self.scaled(states).reshape(*replies.shape, -1)

    def begin(self, encoded: Encoded, group_size: int) -> "Seq2SeqDecoding":
        """See ``LanguageModel.begin``."""
        return Seq2SeqDecoding(self, encoded, group_size)

    def scaled(self, states: Tensor) -> Tensor:
        """Scale the hidden states for the head: T5 with tied embeddings divides them by sqrt(D)."""
        return (
            states * float(self.model.model_dim) ** -0.5
            if self.model.config.scale_decoder_outputs
            else states
        )

    def memory_mask(self, encoded: Encoded) -> Tensor:
        """Build the additive mask [P, 1, 1, S] of the memory."""
        return additive_mask(encoded.is_seen, memory_of(encoded).dtype)[:, None, None]


class Seq2SeqDecoding:
    """See ``base.Decoding``: keys and values of the replies grow; those of the memory come with the first step."""

    def __init__(self, language_model: Seq2SeqModel, encoded: Encoded, group_size: int) -> None:
        self._language_model, self._group_size = language_model, group_size
        self._memory, self._mask = encoded.memory, language_model.memory_mask(encoded)
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())

    def step(self, tokens: Tensor) -> Tensor:
        """See ``Decoding.step``."""
        seen = self._cache.get_seq_length() + 1
        states: Tensor = self._language_model.model.decoder(
            input_ids=tokens.reshape(-1, 1),
            attention_mask=self._mask.new_zeros(1, 1, 1, seen),
            encoder_hidden_states=self._memory,
            encoder_attention_mask=self._mask,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state  # [P * G, 1, D]
        return self._language_model.scaled(states[:, -1]).reshape(*tokens.shape, -1)

    def keep(self, prompts: Tensor, places: Tensor) -> None:
        """See ``Decoding.keep``."""
        # Own keys and values are kept by reply, n = p * G + g; those of the memory by prompt.
        rows = prompts[:, None] * self._group_size + places  # [P', G']
        self._group_size = places.shape[1]
        self._cache.self_attention_cache.batch_select_indices(rows.flatten())
        self._cache.cross_attention_cache.batch_select_indices(prompts)
        self._mask = self._mask[prompts]
        # The layers read keys and values from the cache; of the memory they look at the shape only.
        self._memory = (
            torch.index_select(self._memory, 0, prompts) if self._memory is not None else None
        )
