"""Draw replies by ``generate`` of transformers, with the weights that are trained.

How this differs from ``language_model.sampling``: a prompt is read once for each of its replies. All replies are written until
the last one ends. The log-probabilities are those of the scores that ``generate`` returns, which round otherwise than an update.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from grpo_pipeline.tasks.dialogue.generation.engine import Drawn, Request
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel


class LibraryEngine:
    """``generate`` of a causal network.

    Args:
        language_model: the policy.
    """

    def __init__(self, language_model: LanguageModel) -> None:
        self._model = language_model.model

    @torch.no_grad()
    def draw(self, request: Request) -> Drawn:
        """See ``Engine.draw``; the scores of all tokens, [P, G, T, V] in float32, are held at once."""
        prompts, device = request.prompts, request.prompts.ids.device
        with _configured(self._model, request), _seeded(request.seed, device):
            found = self._model.generate(
                input_ids=prompts.ids, attention_mask=prompts.is_token.long()
            )
        shape = (len(prompts.ids), request.group_size, -1)
        tokens = found.sequences[:, prompts.ids.shape[1] :].view(shape)  # [P, G, T]
        scores = torch.stack(found.scores, dim=1).view(*tokens.shape, -1)  # [P, G, T, V]
        log_probs = scores.float().log_softmax(dim=-1)
        is_cut = request.top_k is not None or request.top_p is not None
        logprobs = log_probs.gather(-1, tokens[..., None])[..., 0]
        return Drawn(tokens, logprobs, scores > -torch.inf if is_cut else None)


@contextmanager
def _configured(model: Any, request: Request) -> Iterator[None]:
    """Ask for samples of the distribution that the update scores, in the place of what the folder's own configuration asks."""
    *end_ids, pad_id = request.ends
    own = model.generation_config
    model.generation_config = GenerationConfig(
        do_sample=True,
        num_return_sequences=request.group_size,
        max_new_tokens=request.max_tokens,
        temperature=request.temperature,
        top_k=request.top_k or 0,
        top_p=1.0 if request.top_p is None else request.top_p,
        eos_token_id=end_ids,
        pad_token_id=pad_id,
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
