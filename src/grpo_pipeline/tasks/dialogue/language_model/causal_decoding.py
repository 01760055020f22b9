"""Write replies with a causal language model, a token of each at a time.

Own keys and values grow in place, a prompt's are not copied.
"""

import torch
from torch import Tensor

from grpo_pipeline.tasks.dialogue.language_model.causal_layers import CausalLayers
from grpo_pipeline.tasks.dialogue.language_model.group_attention import (
    Prompt,
    attend_folded,
    fold_queries,
    unfold,
)

# Initial room in tokens; it is doubled when it is full.
ROOM = 32


class CausalDecoding:
    """See ``base.Decoding``. The replies' own keys have the axis order of the attention, so that no step transposes them.

    Args:
        layers: layers of the model.
        held: keys, values and padding of the prompts, by layer.
        positions: int64 [P], positions of the first token that is read.
        group_size: G.
    """

    def __init__(
        self, layers: CausalLayers, held: list[Prompt], positions: Tensor, group_size: int
    ) -> None:
        self._layers, self._held = layers, held
        self._positions = positions[:, None].expand(-1, group_size)  # [P, G]
        self._own: list[Tensor] = []
        self._length = 0

    def step(self, tokens: Tensor) -> Tensor:
        """See ``Decoding.step``."""
        rows = tokens.reshape(-1, 1)  # [P * G, 1]
        positions = (self._positions + self._length).reshape(-1, 1)  # [P * G, 1]
        states = self._layers.states(rows, positions, self._attend)  # [P * G, 1, D]
        self._length += 1
        return states.view(*tokens.shape, -1)

    def keep(self, prompts: Tensor, places: Tensor) -> None:
        """See ``Decoding.keep``."""
        self._positions = self._positions[prompts[:, None], places]  # [P', G']
        self._held = [
            Prompt(p.keys[prompts], p.values[prompts], None if p.bias is None else p.bias[prompts])
            for p in self._held
        ]
        self._own = [
            # The two index tensors come first, [P', G', 2, c, room, d], and go back to [2, P', c, G', room, d].
            both[:, prompts[:, None], :, places].permute(2, 0, 3, 1, 4, 5).contiguous()
            for both in self._own
        ]

    def _attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Store the keys and values [P * G, c, 1, d] of the new tokens, and attend to all."""
        prompt, end = self._held[layer], self._length + 1
        prompts, heads = prompt.keys.shape[:2]
        own = self._room(layer, keys, prompts)
        for part, new in zip(own, (keys, values), strict=True):
            # [P * G, c, 1, d] -> [P, c, G, d], the column of this token.
            part[..., self._length, :] = new.view(prompts, -1, heads, new.shape[-1]).transpose(1, 2)
        # Only what is written: [P * c * G, t, d], t = end.
        own_keys, own_values = (part.flatten(0, 2)[:, :end] for part in own)
        folded = attend_folded(fold_queries(query, prompts, heads), prompt, own_keys, own_values)
        return unfold(folded, own.shape[3], query.shape[1] // heads, prompts)

    def _room(self, layer: int, keys: Tensor, prompts: int) -> Tensor:
        """Get the replies' own keys and values [2, P, c, G, room, d] of a layer, with room for another token."""
        if layer == len(self._own):
            self._own.append(
                keys.new_empty(
                    2, prompts, keys.shape[1], len(keys) // prompts, ROOM, keys.shape[-1]
                )
            )
        held = self._own[layer]
        if self._length == held.shape[4]:
            self._own[layer] = torch.cat((held, torch.empty_like(held)), dim=4)
        return self._own[layer]
