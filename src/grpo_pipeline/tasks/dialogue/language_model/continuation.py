"""Check that a network says the same from a cache as in one forward pass, before anything is trained with it.

Replies are drawn from a cache and scored all at once, beside prompts of other lengths. A network whose cache is another thing
(a recurrent state, say), or which heeds padding, would be trained on log-probabilities that are not those of its draws.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.tasks.dialogue.language_model.attention import NAME
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel, logits_of

# Times the spread of the log-probabilities: sums in another order differ by 1e-6 to 1e-5 of it in float32, by a few 1e-2 in
# bfloat16.
LARGEST = {torch.float32: 1e-3, torch.bfloat16: 0.1}
LENGTHS, REPLY = (5, 3), 3  # tokens: few, so that the smallest network has positions for them


@torch.no_grad()
def check_continuation(language_model: LanguageModel, *, name: str) -> None:
    """Compare log-probabilities of tokens written from the cache, and scored at once, with a forward pass without either.

    Args:
        language_model: float32 or bfloat16.
        name: of the model, for the error.

    Raises:
        ValueError: if they differ by more than ``LARGEST`` allows, or a cache cannot be made.
    """
    try:
        distance = continuation_distance(language_model)
    except (
        AttributeError,
        IndexError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        TypeError,
    ) as error:
        raise ValueError(
            f"{name} must hold a network that continues a text from keys and values, which {_type(language_model)} does not: "
            f"{type(error).__name__}: {error}; give another model"
        ) from error
    if not distance <= LARGEST[language_model.model.dtype]:
        raise ValueError(
            f"{name} must say the same from its cache as in one forward pass, got log-probabilities apart by {distance:.2g} of "
            f"their spread ({_type(language_model)}); give another model"
        )


def continuation_distance(language_model: LanguageModel) -> float:
    """Measure the largest difference of a log-probability on two prompts of drawn tokens, as a share of their standard deviation.

    NaN if one is no number.
    """
    device = language_model.model.device
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(language_model.choices, (2, 1, max(LENGTHS)), generator=generator).to(
        device
    )
    replies = torch.randint(language_model.choices, (2, 2, REPLY), generator=generator).to(device)
    if (padding := getattr(language_model.model.config, "pad_token_id", None)) is not None:
        replies[0, 0, 0] = padding  # a token like any other, if it is drawn
    columns = torch.arange(max(LENGTHS), device=device)
    lengths = torch.tensor(LENGTHS, device=device)[:, None]
    is_causal = language_model.kind == "causal"
    # Padding on the left for a causal language model, else on the right: [2, 1, S].
    is_token = (columns >= max(LENGTHS) - lengths if is_causal else columns < lengths)[:, None]
    encoded = language_model.encode(ids, is_token)
    with _plain_attention(language_model.model):
        expected = torch.stack(
            [
                _alone(language_model, prompt[seen], reply)
                for prompt, seen, rows in zip(ids[:, 0], is_token[:, 0], replies, strict=True)
                for reply in rows
            ]
        ).view(2, 2, REPLY, -1)
    at_once = _log_probs(language_model, language_model.hidden(encoded, replies))
    decoding, tokens, steps = (
        language_model.begin(encoded, 2),
        encoded.start[:, None].expand(2, 2),
        [],
    )
    for t in range(REPLY):
        steps.append(_log_probs(language_model, decoding.step(tokens)))
        tokens = replies[..., t]
    found = torch.stack((at_once, torch.stack(steps, dim=2)))
    return float((found - expected).abs().max() / expected.std())


@contextmanager
def _plain_attention(model: Any) -> Iterator[None]:
    """Let the library attend itself, where the project's attention is in its place (T5)."""
    kept = model.config._attn_implementation
    if kept == NAME:
        model.set_attn_implementation("eager")
    try:
        yield
    finally:
        if kept == NAME:
            model.set_attn_implementation(NAME)


def _alone(language_model: LanguageModel, prompt: Tensor, reply: Tensor) -> Tensor:
    """Compute log-probabilities [T, V] of the tokens of one reply to one prompt, without padding and without a cache."""
    model = language_model.model
    if language_model.kind == "causal":
        text = torch.cat((prompt, reply[:-1]))[None]
        logits = model(input_ids=text, use_cache=False).logits[0, len(prompt) - 1 :]
    else:
        start = reply.new_full((1,), model.config.decoder_start_token_id)
        read = {"input_ids": prompt[None], "attention_mask": torch.ones_like(prompt)[None]}
        logits = model(
            **read, decoder_input_ids=torch.cat((start, reply[:-1]))[None], use_cache=False
        ).logits[0]
    return logits_of(logits, None).log_softmax(dim=-1)


def _log_probs(language_model: LanguageModel, states: Tensor) -> Tensor:
    return logits_of(states, language_model.head).log_softmax(dim=-1)


def _type(language_model: LanguageModel) -> str:
    return str(language_model.model.config.model_type)
