"""Draw replies by ``generate`` of transformers, with the weights that are trained.

How this differs from ``language_model.sampling``: a prompt is read for each reply, and all are written until the last one ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from grpo_pipeline.tasks.dialogue.generation.engine import Drawn, Ends
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens


class LibraryEngine:
    """``generate`` of a causal network.

    Args:
        language_model: the policy.
    """

    def __init__(self, language_model: LanguageModel) -> None:
        self._model = language_model.model

    @torch.no_grad()
    def draw(
        self, prompts: Tokens, group_size: int, *, params: ReplyParams, ends: Ends, seed: int
    ) -> Drawn:
        """See ``Engine.draw``; the scores of all tokens, [P, G, T, V] in float32, are held at once."""
        device = prompts.ids.device
        with _configured(self._model, group_size, params, ends), _seeded(seed, device):
            found = self._model.generate(
                input_ids=prompts.ids, attention_mask=prompts.is_token.long()
            )
        shape = (len(prompts.ids), group_size, -1)
        tokens = found.sequences[:, prompts.ids.shape[1] :].view(shape)  # [P, G, T]
        scores = torch.stack(found.scores, dim=1).view(*tokens.shape, -1)  # [P, G, T, V]
        log_probs = scores.float().log_softmax(dim=-1)
        is_cut = params.top_k is not None or params.top_p is not None
        logprobs = log_probs.gather(-1, tokens[..., None])[..., 0]
        return Drawn(tokens, logprobs, scores > -torch.inf if is_cut else None)


@contextmanager
def _configured(model: Any, group_size: int, params: ReplyParams, ends: Ends) -> Iterator[None]:
    """Ask for samples of the distribution that an update scores, in the place of what the folder's own configuration asks."""
    own = model.generation_config
    model.generation_config = GenerationConfig(
        do_sample=True,
        num_return_sequences=group_size,
        max_new_tokens=params.max_tokens,
        temperature=params.temperature,
        top_k=params.top_k or 0,
        top_p=1.0 if params.top_p is None else params.top_p,
        eos_token_id=list(ends[:-1]),
        pad_token_id=ends[-1],
        return_dict_in_generate=True,
        output_scores=True,
    )
    try:
        yield
    finally:
        model.generation_config = own


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global stream of the device, from which ``generate`` draws, and put it back afterwards."""
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
