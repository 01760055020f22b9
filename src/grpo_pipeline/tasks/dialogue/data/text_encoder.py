"""Encode texts as vectors of a local Hugging Face encoder: mean over tokens, length 1."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from grpo_pipeline.tasks.dialogue.data.params import DenseEncoder
from grpo_pipeline.tasks.dialogue.language_model.safe_loading import (
    LOCAL,
    SAFE,
    check_weights,
    refusing_code,
)


@torch.no_grad()
def encode_texts(texts: Sequence[str], params: DenseEncoder) -> np.ndarray:
    """Encode texts as vectors, [T, D] float32.

        v = sum_i m[i] h[i] / sum_i m[i],  divided by its length;  h the last hidden states, m the attention mask

    Source of the pooling: Reimers and Gurevych, Sentence-BERT, arXiv 1908.10084, section 3. A vector does not depend on its
    batch, up to round-off.

    Raises:
        FileNotFoundError: if its weights are no safetensors.
        ValueError: if the folder is missing, or asks for code of its own.
    """
    folder = Path(params.folder)
    if not folder.is_dir():
        raise ValueError(
            f"dialogue.retrieval.encoder.folder must be a Hugging Face folder, got nothing at {params.folder!r}; correct the path"
        )
    check_weights(folder)
    from transformers import AutoModel, AutoTokenizer  # heavy, and only needed here

    with refusing_code(folder):
        tokenizer = AutoTokenizer.from_pretrained(params.folder, **LOCAL)
        model = AutoModel.from_pretrained(params.folder, **SAFE).eval()
    rows = []
    for start in range(0, len(texts), params.batch_size):
        part = list(texts[start : start + params.batch_size])
        tokens = tokenizer(
            part, padding=True, truncation=True, max_length=params.max_tokens, return_tensors="pt"
        )
        hidden = model(**tokens).last_hidden_state.float()  # [T, I, D]
        weights = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)  # 0 for padding
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)  # [T, D]
        rows.append(torch.nn.functional.normalize(mean, dim=-1))
    return torch.cat(rows).numpy()
