"""Score and write replies with any causal language model of transformers, by its own forward pass and key-value cache.

The prompts are read once, without their last token, which is the start of every reply. Their keys and values are copied for each
reply: ``causal.py`` shares them, for the networks whose layers it knows, and this module is its oracle.

Axes: P prompts, G replies of each, S tokens of a prompt, T tokens of a reply, D width, V choices; rows n = p * G + g.
"""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

from grpo_pipeline.core.groups import replicate, to_rows
from grpo_pipeline.tasks.dialogue.language_model.base import (
    Encoded,
    check_causal_prompts,
    check_positions,
    shifted,
)
from grpo_pipeline.tasks.dialogue.language_model.library_head import LibraryModel


class LibraryCausal(LibraryModel):
    """A causal language model of transformers.

    Args:
        model: has a head and no dropout.
    """

    kind = "causal"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def encode(self, ids: Tensor, is_token: Tensor) -> Encoded:
        """Read a text of each prompt, int64 and bool [P, 1, S], padded on the left; see ``CausalModel.encode``.

        Raises:
            NotImplementedError: for a network that keeps no keys and values.
        """
        check_causal_prompts(ids, is_token)
        read, seen = ids[:, 0, :-1], is_token[:, 0, :-1]  # [P, S - 1]
        if not read.shape[1]:  # a forward pass needs a column: one of padding, which nothing sees
            read, seen = ids[:, 0], torch.zeros_like(is_token[:, 0])  # [P, 1]
        positions = (seen.cumsum(dim=1) - 1).clamp_min(0)
        cache = DynamicCache()
        self.forward_through(read, seen, positions, cache)
        if not cache.layers:
            raise NotImplementedError("it keeps none")
        held: dict[str, Tensor] = {}
        for i, layer in enumerate(cache.layers):
            held |= {f"keys/{i}": layer.keys, f"values/{i}": layer.values}  # [P, h, S - 1, d]
        return Encoded(ids[:, 0, -1], seen, cache=held)

    def hidden(self, encoded: Encoded, replies: Tensor) -> Tensor:
        """See ``LanguageModel.hidden``; logits [P, G, T, V] where ``head`` is None."""
        inputs = shifted(encoded, replies)  # [P * G, T]
        seen, first, cache = repeated(encoded, replies.shape[1])
        positions = first[:, None] + torch.arange(inputs.shape[1], device=inputs.device)
        # Every token of a reply is seen, padding after its end too: no token before it sees that.
        is_seen = functional.pad(seen, (0, inputs.shape[1]), value=True)  # [P * G, S - 1 + T]
        return self.forward_through(inputs, is_seen, positions, cache).view(*replies.shape, -1)

    def begin(self, encoded: Encoded, group_size: int) -> "LibraryDecoding":
        """See ``LanguageModel.begin``."""
        return LibraryDecoding(self, encoded, group_size)

    def check_room(self, encoded: Encoded, max_tokens: int) -> None:
        """See ``LanguageModel.check_room``; a network without positions has no limit."""
        check_positions(self.positions, encoded, max_tokens)

    def forward_through(
        self, ids: Tensor, is_seen: Tensor, positions: Tensor, cache: DynamicCache
    ) -> Tensor:
        """Append tokens to a cache, and compute what predicts the next ones: states [N, T, D] or logits [N, T, V].

        Args:
            ids: int64 [N, T].
            is_seen: bool [N, S + T], of the tokens in the cache and of these.
            positions: int64 [N, T], counted without padding.
            cache: grows by T tokens.
        """
        options = {"position_ids": positions} if self.takes_positions else {}
        network = self.model if self.gives_logits else self.model.base_model
        found = self.run(
            network,
            input_ids=ids,
            attention_mask=is_seen.long(),
            past_key_values=cache,
            use_cache=True,
            **options,
        )
        states: Tensor = found.logits if self.gives_logits else found.last_hidden_state
        return states


class LibraryDecoding:
    """See ``base.Decoding``: the library's cache, with a row per reply."""

    def __init__(self, language_model: LibraryCausal, encoded: Encoded, group_size: int) -> None:
        self._language_model, self._group_size = language_model, group_size
        self._is_seen, self._positions, self._cache = repeated(encoded, group_size)

    def step(self, tokens: Tensor) -> Tensor:
        """See ``Decoding.step``."""
        self._is_seen = functional.pad(self._is_seen, (0, 1), value=True)  # [P * G, S + t]
        states = self._language_model.forward_through(
            tokens.reshape(-1, 1), self._is_seen, self._positions[:, None], self._cache
        )  # [P * G, 1, D or V]
        self._positions = self._positions + 1
        return states.view(*tokens.shape, -1)

    def keep(self, prompts: Tensor, places: Tensor) -> None:
        """See ``Decoding.keep``."""
        rows = (prompts[:, None] * self._group_size + places).flatten()  # [P' * G']
        self._group_size = places.shape[1]
        self._is_seen, self._positions = self._is_seen[rows], self._positions[rows]
        self._cache.batch_select_indices(rows)


def repeated(encoded: Encoded, group_size: int) -> tuple[Tensor, Tensor, DynamicCache]:
    """Copy an encoding for each reply: the seen places [P * G, S], the next position [P * G], and a cache that may grow."""
    seen = encoded.is_seen.repeat_interleave(group_size, dim=0)
    first = to_rows(replicate(encoded.is_seen.sum(dim=1), group_size))
    cache = DynamicCache()
    for i in range(len(encoded.cache) // 2):
        keys, values = (
            encoded.cache[f"{name}/{i}"].repeat_interleave(group_size, dim=0)
            for name in ("keys", "values")
        )  # [P, h, S, d] -> [P * G, h, S, d]
        cache.update(keys, values, i)
    return seen, first, cache
