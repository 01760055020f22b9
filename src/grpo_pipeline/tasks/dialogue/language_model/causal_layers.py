"""Run the layers of GPT-2 and Llama with an attention of the caller's.

The parts between the attentions are called as in transformers.

How this differs from public versions: those pass keys and values to a cache with a tensor per row. Every reply then needs a copy
of its prompt's. Here the caller attends, and may keep a prompt's keys and values once for all replies. Modules are called, never
their weights, so that low-rank updates count.

Axes: N rows, T tokens, D width, h heads of queries, c heads of keys and values (c divides h), d width of a head.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from grpo_pipeline.tasks.dialogue.language_model.recomputed_layers import again

# (number of the layer, queries [N, h, T, d], keys, values [N, c, T, d]) -> [N, T, h * d]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class CausalLayers:
    """A stack of layers that each attend once; built by ``layers_of``.

    Args:
        model: model with a head; its dropout must be 0.
        recomputes: whether each layer computes itself again in the backward pass.
    """

    def __init__(self, model: Any, *, recomputes: bool) -> None:
        self._model, self._recomputes = model.base_model, recomputes

    @property
    def count(self) -> int:
        """Number of layers."""
        return int(self._model.config.num_hidden_layers)

    def states(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Compute the last hidden states [N, T, D] of ids at positions, both int64 [N, T]."""
        x, turn = self.embed(ids, positions)

        def pass_through(layer: int, x: Tensor) -> Tensor:
            return self.join(layer, x, attend(layer, *self.project(layer, x, turn)))

        for layer in range(self.count):
            x = again(pass_through, layer, x, is_on=self._recomputes)
        return self.norm(x)

    def keys_and_values(
        self, ids: Tensor, positions: Tensor, attend: Attend
    ) -> list[tuple[Tensor, Tensor]]:
        """Compute keys and values [N, c, T, d] of every layer; the rest of the last layer is not computed."""
        x, turn = self.embed(ids, positions)
        found = []

        def pass_through(layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            query, keys, values = self.project(layer, x, turn)
            if layer + 1 < self.count:
                x = self.join(layer, x, attend(layer, query, keys, values))
            return keys, values, x

        for layer in range(self.count):
            keys, values, x = again(pass_through, layer, x, is_on=self._recomputes)
            found.append((keys, values))
        return found

    def embed(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Any]:
        """Compute the input of the first layer [N, T, D], and the rotation of queries and keys, if there is one."""
        raise NotImplementedError

    def project(self, layer: int, x: Tensor, turn: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Compute scaled queries [N, h, T, d], keys and values [N, c, T, d] of a layer."""
        raise NotImplementedError

    def join(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        """Compute a layer's output from its input [N, T, D] and the attention's result [N, T, h * d]."""
        raise NotImplementedError

    def norm(self, x: Tensor) -> Tensor:
        """Normalise the last hidden states."""
        raise NotImplementedError


class Gpt2Layers(CausalLayers):
    """The layers of GPT-2: positions are added to the embedding."""

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
    """The layers of Llama: queries and keys are rotated by their positions; heads of queries may share a head of keys."""

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


def layers_of(model: Any, *, recomputes: bool) -> CausalLayers:
    """Wrap the layers of a GPT-2 or a Llama with a head."""
    return _LAYERS[model.config.model_type](model, recomputes=recomputes)
