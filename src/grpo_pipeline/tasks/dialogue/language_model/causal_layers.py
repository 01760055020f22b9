"""Take the layers of GPT-2 and Llama apart where they attend.

What lies between is called as transformers has it.

How this differs from public versions: those hand their keys and values to a cache that is one tensor per row, so that every
reply needs a copy of its prompt's. Here the attention is the caller's, who may keep a prompt's keys and values once for all
replies. Modules are called, never their weights, so that low-rank updates count.

Axes: N rows, T tokens, D width, h heads of queries, c heads of keys and values (c divides h), d width of a head.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

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
