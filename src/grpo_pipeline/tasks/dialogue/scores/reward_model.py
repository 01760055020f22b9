"""Score replies with a reward model: a sequence classifier of a Hugging Face folder on this machine."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from grpo_pipeline.tasks.dialogue.language_model.safe_loading import (
    LOCAL,
    SAFE,
    check_weights,
    refusing_code,
    without_bars,
)


def reward_model(
    replies: Sequence[str], *, prompts: Sequence[str], folder: str, max_tokens: int = 512
) -> list[float]:
    """Score every reply by the classifier's logit for prompt and reply; of two classes, that of the second minus the first.

    A pair is scored by itself: in a batch, its last bits would depend on its neighbours.

    Args:
        replies: N texts.
        prompts: N texts, what the model read.
        folder: of the classifier and its tokenizer, safetensors.
        max_tokens: a longer pair loses the end of its prompt.

    Returns:
        N numbers without bounds.

    Raises:
        FileNotFoundError: if the folder or its weights are missing.
        ValueError: if it has more than two classes.
    """
    import torch

    tokenizer, model = _read(folder)
    found = []
    with torch.no_grad():
        for prompt, reply in zip(prompts, replies, strict=True):
            read = tokenizer(
                prompt, reply, truncation="only_first", max_length=max_tokens, return_tensors="pt"
            )
            logits = model(**read).logits[0]  # [classes]
            found.append(float(logits[-1] - logits[0] if len(logits) == 2 else logits[0]))
    return found


@cache
def _read(folder: str) -> tuple[Any, Any]:
    # Imported here: the other scores need no library.
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    path = Path(folder)
    check_weights(path)
    with refusing_code(path), without_bars():
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            folder, output_loading_info=True, **SAFE
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
    if loaded["missing_keys"]:
        missing = ", ".join(sorted(loaded["missing_keys"])[:3])
        raise ValueError(
            f"{folder} must hold a trained classifier, got none of {missing}; save it with its head"
        )
    if model.config.num_labels > 2:
        raise ValueError(
            f"{folder} must have one or two classes, got {model.config.num_labels}; give a reward model"
        )
    return tokenizer, model.eval()
