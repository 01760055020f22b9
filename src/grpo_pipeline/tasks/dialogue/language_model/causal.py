"""Score and write replies with causal language models such as GPT-2 and Llama; replies continue a prompt's keys and values.

The last token of a prompt is not read with the others. It is the start of every reply, from which the first token is predicted.
The replies of a group share the keys and values of their prompt (``group_attention.py``), in sampling and in the graph of an
update.
"""

import torch
from torch import Tensor

from grpo_pipeline.core.groups import replicate, to_rows
from grpo_pipeline.tasks.dialogue.language_model.attention import additive_mask
from grpo_pipeline.tasks.dialogue.language_model.base import (
    Encoded,
    LanguageModel,
    check_causal_prompts,
    check_positions,
    shifted,
)
from grpo_pipeline.tasks.dialogue.language_model.causal_decoding import CausalDecoding
from grpo_pipeline.tasks.dialogue.language_model.causal_layers import CausalLayers, layers_of
from grpo_pipeline.tasks.dialogue.language_model.group_attention import (
    Prompt,
    attend_prompt,
    attend_replies,
)


class CausalModel(LanguageModel):
    """A GPT-2 or Llama as a language model.

    Args:
        model: a causal language model of transformers.
    """

    kind = "causal"

    @property
    def layers(self) -> CausalLayers:
        """The layers of the model."""
        return layers_of(self.model, recomputes=self.recomputes_layers)

    def encode(self, ids: Tensor, is_token: Tensor) -> Encoded:
        """Read a text of each prompt, int64 and bool [P, 1, S], padded on the left.

        Raises:
            ValueError: also if there are several texts, or padding is not on the left.
        """
        check_causal_prompts(ids, is_token)
        # The last token is the start of the reply; positions count tokens without the padding on the left.
        read, seen = ids[:, 0, :-1], is_token[:, 0, :-1]  # [P, S]
        positions = (seen.cumsum(dim=1) - 1).clamp_min(0)  # [P, S]

        def attend(layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return attend_prompt(query, keys, values, is_seen=seen)

        found = self.layers.keys_and_values(read, positions, attend)
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
        # A reply begins at the position after the read tokens of its prompt.
        first = to_rows(replicate(encoded.is_seen.sum(dim=1), replies.shape[1]))  # [P * G]
        positions = first[:, None] + torch.arange(inputs.shape[1], device=inputs.device)
        return self.layers.states(inputs, positions, attend).reshape(*replies.shape, -1)

    def begin(self, encoded: Encoded, group_size: int) -> CausalDecoding:
        """See ``LanguageModel.begin``."""
        return CausalDecoding(self.layers, _held(encoded), encoded.is_seen.sum(dim=1), group_size)

    def check_room(self, encoded: Encoded, max_tokens: int) -> None:
        """See ``LanguageModel.check_room``."""
        check_positions(self.positions, encoded, max_tokens)


def _held(encoded: Encoded) -> list[Prompt]:
    """Collect each layer's keys and values of the prompts, laid out once for all steps."""
    bias = None
    if not bool(encoded.is_seen.all()):
        bias = additive_mask(encoded.is_seen[:, None, None], encoded.cache["keys/0"].dtype)
    layers = range(len(encoded.cache) // 2)
    keys, values = (
        [encoded.cache[f"{name}/{i}"].contiguous() for i in layers] for name in ("keys", "values")
    )
    return [Prompt(*pair, bias) for pair in zip(keys, values, strict=True)]
