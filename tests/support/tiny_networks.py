"""Networks of transformers of a few thousand random weights: causal ones and encoder-decoders, by the name of their type."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

CHOICES = 40
IDS = {"vocab_size": CHOICES, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
STACK = IDS | {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
SIZES = STACK | {"hidden_size": 32, "intermediate_size": 48}
GROUPED = SIZES | {"num_key_value_heads": 2}
NARROW = GROUPED | {"head_dim": 8}
# Windows that are shorter than the prompts, where there are some.
WINDOW = {"sliding_window": 4}
GPT2 = IDS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
T5 = IDS | {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
BART = IDS | {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
}
CAUSAL: dict[str, dict[str, Any]] = {
    "bloom": IDS | {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "cohere": GROUPED,
    "cohere2": GROUPED | WINDOW,
    "exaone4": GROUPED | WINDOW,
    "falcon": SIZES,
    "gemma": NARROW,
    "gemma2": NARROW | WINDOW,
    "gemma3_text": NARROW | WINDOW,
    "glm4": NARROW,
    "gpt2": GPT2,
    "gpt_neo": STACK
    | {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gpt_neox": SIZES,
    "gpt_oss": NARROW | WINDOW | {"num_local_experts": 4},
    "gptj": GPT2 | {"rotary_dim": 4},
    "granite": GROUPED | {"logits_scaling": 3.0},
    "llama": GROUPED,
    "mistral": GROUPED | WINDOW,
    "mixtral": GROUPED | {"num_local_experts": 4},
    "mpt": IDS | {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "nemotron": GROUPED,
    "olmo": SIZES,
    "olmo2": SIZES,
    "opt": STACK | {"hidden_size": 32, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": SIZES,
    "phi3": GROUPED | WINDOW,
    "qwen2": GROUPED,
    "qwen3": NARROW,
    "smollm3": GROUPED,
    "stablelm": GROUPED,
    "starcoder2": GROUPED | WINDOW,
}
ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "bart": BART,
    "blenderbot": BART,
    "marian": BART,
    "mbart": BART,
    "mt5": T5,
    "pegasus": BART,
    "t5": T5,
    "umt5": T5,
}


# Networks of which no reply can be drawn from a cache as it is scored: tokens that see both sides, positions that skip padding
# ids, a recurrent state.
REFUSED: dict[str, dict[str, Any]] = {"bert": SIZES, "m2m_100": BART, "mamba": IDS | {"hidden_size": 32, "num_hidden_layers": 2}}


def tiny_network(kind: str, *, seed: int = 0) -> Any:
    """Return a network with a head, float32, whose distributions are far from uniform."""
    sizes = (CAUSAL | ENCODER_DECODERS | REFUSED)[kind]
    loader: Any = AutoModelForSeq2SeqLM if "decoder_layers" in sizes or sizes.keys() >= T5.keys() else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = loader.from_config(AutoConfig.for_model(kind, **sizes), dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.15) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) / 20)
    return model
