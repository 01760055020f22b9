"""A causal language model as a reader: the prompt is read once into a key-value cache, and replies go on from there.

The last token of a prompt is not read with the others: it is the start of every reply, the token from which the first one is
predicted. The replies of a group get copies of the prompt's keys and values, never a second reading: a cache that grows keeps
prompt and reply in one tensor per row, so a view is not possible here.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from grpo_pipeline.core.groups import replicate, to_rows
from grpo_pipeline.tasks.dialogue.reader import Encoded, Reader, check_prompts, shifted
from grpo_pipeline.tasks.dialogue.shared_attention import additive_mask


class CausalReader(Reader):
    """A GPT-2 or Llama as a reader.

    Args:
        model: a causal language model of transformers.
    """

    kind = "causal"

    def encode(self, ids: Tensor, is_token: Tensor) -> Encoded:
        """Read one text of each prompt, int64 and bool [P, 1, S], padded on the left.

        Raises:
            ValueError: also if there are several texts, or padding is not on the left.
        """
        check_prompts(ids, is_token)
        if ids.shape[1] != 1 or not bool(is_token[:, 0, -1].all()):
            raise ValueError(
                f"a causal reader must get one text per prompt, padded on the left, got {ids.shape[1]} texts or padding at the "
                "end; join the stories, and encode with padding: left"
            )
        read, seen = ids[:, 0, :-1], is_token[:, 0, :-1]
        cache = DynamicCache()
        if read.shape[1]:
            self.run(read, seen, torch.zeros_like(ids[:, 0, 0]), cache)
        layers = {f"{name}/{i}": getattr(layer, name) for i, layer in enumerate(cache.layers) for name in ("keys", "values")}
        return Encoded(ids[:, 0, -1], seen, cache=layers)

    def hidden(self, encoded: Encoded, replies: Tensor) -> Tensor:
        """See ``Reader.hidden``."""
        group_size = replies.shape[1]
        cache = _open(encoded, group_size)
        inputs = shifted(encoded, replies)
        seen = torch.cat((to_rows(replicate(encoded.is_seen, group_size)), torch.ones_like(inputs, dtype=torch.bool)), dim=1)
        first = to_rows(replicate(encoded.is_seen.sum(dim=1), group_size))
        return self.run(inputs, seen, first, cache).reshape(*replies.shape, -1)

    def begin(self, encoded: Encoded, group_size: int) -> "CausalDecoding":
        """See ``Reader.begin``."""
        return CausalDecoding(self, encoded, group_size)

    def check_room(self, encoded: Encoded, max_tokens: int) -> None:
        """See ``Reader.check_room``."""
        limit = self.model.config.max_position_embeddings
        longest = int(encoded.is_seen.sum(dim=1).max()) + 1
        if longest + max_tokens - 1 > limit:
            raise ValueError(
                f"a prompt must have at most {limit - max_tokens + 1} tokens, so that a reply of {max_tokens} fits into "
                f"{limit} positions, got {longest}; cut the prompt, or allow shorter replies"
            )

    def run(self, ids: Tensor, is_seen: Tensor, first: Tensor, cache: Any) -> Tensor:
        """Return the hidden states [N, T, D] of ids [N, T], appended to the cache.

        Args:
            ids: int64 [N, T].
            is_seen: bool [N, S + T], of the cache and of ids.
            first: int64 [N], position of the first token that is_seen has in ids.
            cache: of S tokens.
        """
        width = ids.shape[1]
        past = is_seen.shape[1] - width
        order = torch.ones(width, past + width, dtype=torch.bool, device=ids.device).tril(past)
        mask = additive_mask(is_seen[:, None, None] & order, self.model.dtype)
        positions = first[:, None] + (is_seen[:, past:].cumsum(dim=1) - 1).clamp_min(0)
        states: Tensor = self.model.base_model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        return states


class CausalDecoding:
    """See ``reader.Decoding``: prompt and reply in one cache per row."""

    def __init__(self, reader: CausalReader, encoded: Encoded, group_size: int) -> None:
        self._reader, self._group_size = reader, group_size
        self._cache = _open(encoded, group_size)
        self._seen = to_rows(replicate(encoded.is_seen, group_size))
        self._next = self._seen.sum(dim=1)

    def step(self, tokens: Tensor) -> Tensor:
        """See ``Decoding.step``."""
        ids = tokens.reshape(-1, 1)
        self._seen = torch.cat((self._seen, torch.ones_like(ids, dtype=torch.bool)), dim=1)
        states = self._reader.run(ids, self._seen, self._next, self._cache)
        self._next = self._next + 1
        return states[:, -1].reshape(*tokens.shape, -1)

    def keep(self, prompts: Tensor, places: Tensor) -> None:
        """See ``Decoding.keep``."""
        rows = (prompts[:, None] * self._group_size + places).flatten()
        self._cache.batch_select_indices(rows)
        self._seen, self._next = self._seen[rows], self._next[rows]
        self._group_size = places.shape[1]


def _open(encoded: Encoded, group_size: int) -> DynamicCache:
    """Return a cache that holds the prompt of each row."""
    cache = DynamicCache()
    for i in range(len(encoded.cache) // 2):
        keys, values = (to_rows(replicate(encoded.cache[f"{name}/{i}"], group_size)) for name in ("keys", "values"))
        cache.update(keys, values, i)
    return cache
