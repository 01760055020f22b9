"""Causal language models such as GPT-2 and Llama: the prompt is encoded once into keys and values, which replies continue.

The last token of a prompt is not read with the others: it is the start of every reply, the token from which the first one is
predicted. The replies of a group look at the same keys and values of their prompt (``attention.py``), while they are written
and in the graph of an update.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from grpo_pipeline.core.groups import replicate, to_rows
from grpo_pipeline.tasks.dialogue.language_model.attention import (
    Prompt,
    additive_mask,
    attend_folded,
    attend_prompt,
    attend_replies,
    fold_queries,
    unfold,
)
from grpo_pipeline.tasks.dialogue.language_model.base import (
    Encoded,
    LanguageModel,
    check_prompts,
    shifted,
)

# The layers of GPT-2 and Llama, taken apart where they attend; what lies between is called as transformers has it.
#
# How this differs from public versions: those hand their keys and values to a cache that is one tensor per row, so that every
# reply needs a copy of its prompt's. Here the attention is the caller's, who may keep a prompt's keys and values once for all
# replies. Modules are called, never their weights, so that low-rank updates count.
#
# Axes: N rows, T tokens, D width, h heads of queries, c heads of keys and values (c divides h), d width of a head.

# (number of the layer, queries [N, h, T, d], keys, values [N, c, T, d]) -> [N, T, h * d]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class CausalLayers:
    """A stack of layers of which each attends once; ``layers_of`` makes one.

    Args:
        model: with a head; its dropout must be 0.
    """

    def __init__(self, model: Any) -> None:
        self._model = model.base_model

    @property
    def count(self) -> int:
        """Number of layers."""
        return int(self._model.config.num_hidden_layers)

    def states(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the last hidden states [N, T, D] of ids at positions, both int64 [N, T]."""
        x, turn = self.embed(ids, positions)
        for layer in range(self.count):
            x = self.join(layer, x, attend(layer, *self.project(layer, x, turn)))
        return self.norm(x)

    def keys_and_values(
        self, ids: Tensor, positions: Tensor, attend: Attend
    ) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values [N, c, T, d] of every layer; of the last one nothing else is computed."""
        x, turn = self.embed(ids, positions)
        found = []
        for layer in range(self.count):
            query, keys, values = self.project(layer, x, turn)
            found.append((keys, values))
            if layer + 1 < self.count:
                x = self.join(layer, x, attend(layer, query, keys, values))
        return found

    def embed(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Any]:
        """Return what the first layer reads [N, T, D], and how queries and keys are turned, if they are."""
        raise NotImplementedError

    def project(self, layer: int, x: Tensor, turn: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [N, h, T, d], multiplied by the scale of the scores, keys and values [N, c, T, d] of a layer."""
        raise NotImplementedError

    def join(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        """Return what a layer makes of its input [N, T, D] and of what was attended to [N, T, h * d]."""
        raise NotImplementedError

    def norm(self, x: Tensor) -> Tensor:
        """Return the last hidden states."""
        raise NotImplementedError


class Gpt2Layers(CausalLayers):
    """Of GPT-2: positions are added to the embedding."""

    def embed(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, None]:
        """See ``CausalLayers.embed``."""
        return self._model.wte(ids) + self._model.wpe(positions), None

    def project(self, layer: int, x: Tensor, turn: None) -> tuple[Tensor, Tensor, Tensor]:
        """See ``CausalLayers.project``."""
        block = self._model.h[layer]
        three = block.attn.c_attn(block.ln_1(x)).unflatten(
            -1, (3, block.attn.num_heads, block.attn.head_dim)
        )  # [N, T, 3, h, d]
        query, keys, values = three.permute(2, 0, 3, 1, 4).unbind()  # [N, h, T, d]
        return query * block.attn.scaling, keys, values

    def join(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        """See ``CausalLayers.join``."""
        block = self._model.h[layer]
        x = x + block.attn.c_proj(attended)
        joined: Tensor = x + block.mlp(block.ln_2(x))
        return joined

    def norm(self, x: Tensor) -> Tensor:
        """See ``CausalLayers.norm``."""
        states: Tensor = self._model.ln_f(x)
        return states


class LlamaLayers(CausalLayers):
    """Of Llama: queries and keys are turned by their positions; several heads of queries may share one of keys."""

    def embed(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """See ``CausalLayers.embed``."""
        x = self._model.embed_tokens(ids)
        return x, self._model.rotary_emb(x, position_ids=positions)

    def project(
        self, layer: int, x: Tensor, turn: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``CausalLayers.project``."""
        block = self._model.layers[layer]
        normed, attention = block.input_layernorm(x), block.self_attn
        query, keys, values = (
            # [N, T, heads, d] -> [N, heads, T, d]; keys and values may have fewer heads.
            linear(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, keys = apply_rotary_pos_emb(query, keys, *turn)
        return query * attention.scaling, keys, values

    def join(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        """See ``CausalLayers.join``."""
        block = self._model.layers[layer]
        x = x + block.self_attn.o_proj(attended)
        joined: Tensor = x + block.mlp(block.post_attention_layernorm(x))
        return joined

    def norm(self, x: Tensor) -> Tensor:
        """See ``CausalLayers.norm``."""
        states: Tensor = self._model.norm(x)
        return states


_LAYERS: dict[str, type[CausalLayers]] = {"gpt2": Gpt2Layers, "llama": LlamaLayers}


def layers_of(model: Any) -> CausalLayers:
    """Return the layers of a GPT-2 or a Llama with a head."""
    return _LAYERS[model.config.model_type](model)


# Write replies with a causal language model, a token of each at a time: own keys and values grow in place, a prompt's are not
# copied.

# Tokens that there is room for at first; the room is doubled when it is full.
ROOM = 32


class CausalDecoding:
    """See ``base.Decoding``. The order of the own keys is that of the attention, so that no step turns them.

    Args:
        layers: of the model.
        held: keys, values and padding of the prompts, by layer.
        positions: int64 [P], of the first token that is read.
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
        """Write the keys and values [P * G, c, 1, d] of the new tokens down, and attend to all."""
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
        """Return the own keys and values [2, P, c, G, room, d] of a layer, with room for one more."""
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


class CausalModel(LanguageModel):
    """A GPT-2 or Llama as a language model.

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
                f"a causal language model must get one text per prompt, padded on the left, got {ids.shape[1]} texts or padding "
                "at the end; join the stories, and encode with padding: left"
            )
        # The last token is the start of the reply; positions count tokens, padding on the left takes none.
        read, seen = ids[:, 0, :-1], is_token[:, 0, :-1]  # [P, S]
        positions = (seen.cumsum(dim=1) - 1).clamp_min(0)  # [P, S]

        def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return attend_prompt(query, keys, values, is_seen=seen)

        found = layers_of(self.model).keys_and_values(read, positions, attend)
        names = ("keys", "values")
        cache = {
            f"{name}/{i}": part
            for i, pair in enumerate(found)
            for name, part in zip(names, pair, strict=True)
        }
        return Encoded(ids[:, 0, -1], seen, cache=cache)

    def hidden(self, encoded: Encoded, replies: Tensor) -> Tensor:
        """See ``LanguageModel.hidden``."""
        held = _held(encoded)

        def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return attend_replies(query, keys, values, held[layer])

        inputs = shifted(encoded, replies)  # [P * G, T]
        # A reply begins at the position after the tokens of its prompt that are read.
        first = to_rows(replicate(encoded.is_seen.sum(dim=1), replies.shape[1]))  # [P * G]
        positions = first[:, None] + torch.arange(inputs.shape[1], device=inputs.device)
        return layers_of(self.model).states(inputs, positions, attend).reshape(*replies.shape, -1)

    def begin(self, encoded: Encoded, group_size: int) -> CausalDecoding:
        """See ``LanguageModel.begin``."""
        return CausalDecoding(
            layers_of(self.model), _held(encoded), encoded.is_seen.sum(dim=1), group_size
        )

    def check_room(self, encoded: Encoded, max_tokens: int) -> None:
        """See ``LanguageModel.check_room``."""
        limit = self.model.config.max_position_embeddings
        longest = int(encoded.is_seen.sum(dim=1).max()) + 1
        if longest + max_tokens - 1 > limit:
            raise ValueError(
                f"a prompt must have at most {limit - max_tokens + 1} tokens, so that a reply of {max_tokens} fits into "
                f"{limit} positions, got {longest}; cut the prompt, or allow shorter replies"
            )


def _held(encoded: Encoded) -> list[Prompt]:
    """Return what each layer holds of the prompts, laid out once for all steps that look at it."""
    bias = None
    if not bool(encoded.is_seen.all()):
        bias = additive_mask(encoded.is_seen[:, None, None], encoded.cache["keys/0"].dtype)
    layers = range(len(encoded.cache) // 2)
    keys, values = (
        [encoded.cache[f"{name}/{i}"].contiguous() for i in layers] for name in ("keys", "values")
    )
    return [Prompt(*pair, bias) for pair in zip(keys, values, strict=True)]
