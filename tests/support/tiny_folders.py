"""A folder with a tiny causal network over bytes, which lasts as long as the tests do."""

import atexit
import tempfile
from functools import cache
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import ByteTokenizer

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
IDS = {"vocab_size": ByteTokenizer.size, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}


def byte_network(kind: str = "qwen2", *, seed: int = 0) -> Any:
    """Return a network of this type, float32, whose distributions are far from uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.for_model(kind, max_position_embeddings=256, **SIZES, **IDS)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.3)
    return model


@cache
def byte_folder(kind: str = "qwen2") -> str:
    """Return the path of its folder."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    byte_network(kind).save_pretrained(folder.name)
    return folder.name
