"""Find out whether a network's logits are the product of its last states with its output embedding, for any network.

Some networks scale or cap their logits (Cohere, Gemma 2) or add a bias of their own (BART). Of these the logits are taken as the
library computes them; of the others the states, of which logits are computed in blocks (``token_scores.py``).
"""

from typing import Any

import torch
from torch.nn import functional

from grpo_pipeline.tasks.dialogue.language_model.base import Head, LanguageModel


class LibraryModel(LanguageModel):
    """A network of transformers that is used by its own forward pass.

    Args:
        model: has a head and no dropout.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.gives_logits = not is_plain_head(model)

    @property
    def head(self) -> Head:
        """See ``LanguageModel.head``."""
        return None if self.gives_logits else super().head


@torch.no_grad()
def is_plain_head(model: Any) -> bool:
    """Compare both on a few tokens, drawn by a generator of their own.

    Args:
        model: a network of transformers with a head.
    """
    embedding, network = model.get_output_embeddings(), model.base_model
    if embedding is None or network is model:
        return False
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(len(embedding.weight), (1, 4), generator=generator)
    ids = ids.to(embedding.weight.device)
    options = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    found = network(input_ids=ids, use_cache=False, **options)
    if not hasattr(found, "last_hidden_state"):
        return False
    logits = functional.linear(found.last_hidden_state, embedding.weight, embedding.bias)
    expected = model(input_ids=ids, use_cache=False, **options).logits
    return bool(torch.equal(logits, expected))
