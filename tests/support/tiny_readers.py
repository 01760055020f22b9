"""Readers of a few hundred weights for tests: byte-level ones, and ones over four tokens that can be enumerated."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.causal import CausalModel
from grpo_pipeline.tasks.dialogue.language_model.encoder_decoder import Seq2SeqModel
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams

ARCHITECTURES = ("t5", "gpt2", "llama")
EOS, PAD = 1, 0
ENDS = (EOS, PAD)


def tiny_reader(architecture: str, *, choices: int = 12, seed: int = 0, scale: float = 2.0) -> LanguageModel:
    """Return a float64 language model of two layers; its head is scaled up, so that its distributions are far from uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MODELS[architecture](choices)
        torch.nn.init.normal_(model.get_output_embeddings().weight, std=scale / 4)
    language_model = Seq2SeqModel(model) if architecture == "t5" else CausalModel(model)
    return language_model.double().eval()


@contextmanager
def attention(language_model: LanguageModel, name: str) -> Iterator[None]:
    """Let the model compute its attention as transformers would by itself."""
    before = language_model.model.config._attn_implementation
    language_model.model.set_attn_implementation(name)
    yield
    language_model.model.set_attn_implementation(before)


def tiny_prompts(language_model: LanguageModel, prompts: int = 3) -> tuple[Tensor, Tensor]:
    """Return ids and is_token [P, n, 5] with padding on the language model's side, and one absent text where there are two."""
    texts = 2 if language_model.kind == "seq2seq" else 1
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, language_model.choices, (prompts, texts, 5), generator=generator)
    is_token = torch.ones_like(ids, dtype=torch.bool)
    if prompts > 1 and texts == 2:
        is_token[1, 0, 3:] = False
        is_token[1, 1] = False
    elif prompts > 1:
        is_token[1, 0, :2] = False
    return torch.where(is_token, ids, PAD), is_token


def tiny_encoded(language_model: LanguageModel, prompts: int = 3) -> Encoded:
    """Return the reading of ``tiny_prompts``."""
    return language_model.encode(*tiny_prompts(language_model, prompts))


def reply_params(**changes: Any) -> ReplyParams:
    """Return parameters of short replies."""
    plain = {"max_tokens": 5, "temperature": 1.0, "top_k": None, "top_p": None, "tokens_per_batch": None}
    return ReplyParams(**{**plain, **changes})


def _t5(choices: int) -> Any:
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD}
    return T5ForConditionalGeneration(T5Config(vocab_size=choices, dropout_rate=0.0, tie_word_embeddings=False, **sizes, **ids))


def _gpt2(choices: int) -> Any:
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": False}
    ids = {"bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": PAD}
    return GPT2LMHeadModel(GPT2Config(vocab_size=choices, n_embd=8, n_layer=2, n_head=2, n_positions=16, **off, **ids))


def _llama(choices: int) -> Any:
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    ids = {"bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": PAD}
    return LlamaForCausalLM(LlamaConfig(vocab_size=choices, max_position_embeddings=16, **sizes, **ids))


MODELS = {"t5": _t5, "gpt2": _gpt2, "llama": _llama}
