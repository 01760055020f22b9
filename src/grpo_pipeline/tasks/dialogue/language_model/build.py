"""Build a language model and its tokenizer: with fresh weights, or from a Hugging Face folder on this machine."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from grpo_pipeline.core.rng import drawn_on_the_cpu
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import ByteTokenizer
from grpo_pipeline.tasks.dialogue.language_model.causal import CausalModel
from grpo_pipeline.tasks.dialogue.language_model.continuation import check_continuation
from grpo_pipeline.tasks.dialogue.language_model.encoder_decoder import Seq2SeqModel
from grpo_pipeline.tasks.dialogue.language_model.folder_tokenizer import read_tokenizer
from grpo_pipeline.tasks.dialogue.language_model.library_causal import LibraryCausal
from grpo_pipeline.tasks.dialogue.language_model.library_encoder_decoder import LibrarySeq2Seq
from grpo_pipeline.tasks.dialogue.language_model.lora import add_lora
from grpo_pipeline.tasks.dialogue.language_model.params import (
    CausalParams,
    FolderParams,
    LanguageModelParams,
    T5Params,
)
from grpo_pipeline.tasks.dialogue.language_model.safe_loading import (
    LOCAL,
    SAFE,
    check_weights,
    refusing_code,
    refusing_kinds,
    without_bars,
)
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokenizer

# Networks whose layers are known, so that the replies of a group share their prompt.
SHARING: dict[str, type[LanguageModel]] = {
    "t5": Seq2SeqModel,
    "gpt2": CausalModel,
    "llama": CausalModel,
}
FEED_FORWARD = 4  # times the width, as in all three papers


def build_language_model(
    params: LanguageModelParams, *, seed: int
) -> tuple[LanguageModel, Tokenizer]:
    """Build the language model, on the CPU, and its tokenizer; the global random state stays unchanged.

    Args:
        params: what to build.
        seed: of fresh weights, also those of low-rank updates; a folder's are what they are.

    Raises:
        FileNotFoundError: if the folder or a file of it is missing.
        ValueError: if it holds no language model, or one that cannot be continued from a cache, or the tokenizer does not fit.
    """
    network, folder = params.network, params.tokenizer_folder
    tokenizer = ByteTokenizer() if folder is None else read_tokenizer(folder)
    with drawn_on_the_cpu(seed):
        if isinstance(network, FolderParams):
            language_model = _read(network)
            check_tokenizer(language_model, tokenizer)
        else:
            language_model = _wrap(_new(network, tokenizer))
        if params.tuning is not None:
            add_lora(language_model, params.tuning)
    language_model.recomputes_layers = network.recompute_layers
    return language_model, tokenizer


def build_from_config(config: Mapping[str, Any], params: LanguageModelParams) -> LanguageModel:
    """Build a language model of an exported model's architecture, on the CPU, to be filled with its weights.

    Args:
        config: ``language_model_config`` of the model: what ``model.config.to_dict`` returned.
        params: what it was built from; gives the number format and the tuning.

    Raises:
        ValueError: if it is the configuration of no language model.
    """
    kind = config.get("model_type", "")
    with torch.random.fork_rng(devices=[]), refusing_kinds(f"language_model_config of {kind!r}"):
        prepared = _prepared(AutoConfig.for_model(**config))
        dtype = getattr(torch, params.weights)
        language_model = _wrap(_loader(prepared).from_config(prepared, dtype=dtype))
        if params.tuning is not None:
            add_lora(language_model, params.tuning)
    return language_model


def check_tokenizer(language_model: LanguageModel, tokenizer: Tokenizer) -> None:
    """Check that every id of the tokenizer has a row in the embedding; rows without an id are allowed (ByT5 has some).

    Raises:
        ValueError: if the tokenizer knows more ids.
    """
    if tokenizer.size > language_model.choices:
        raise ValueError(
            f"the tokenizer must have at most {language_model.choices} ids, one per row of the model's embedding, "
            f"got {tokenizer.size}; give the tokenizer that the model was trained with"
        )


def _read(params: FolderParams) -> LanguageModel:
    folder = Path(params.path)
    with refusing_kinds(str(folder)), without_bars():
        config = _prepared(_read_config(folder))
        model, loaded = _loader(config).from_pretrained(
            str(folder),
            config=config,
            dtype=getattr(torch, params.weights),
            output_loading_info=True,
            **SAFE,
        )
    if missing := sorted(loaded["missing_keys"]):
        raise ValueError(
            f"{folder} must hold all weights of a {type(model).__name__}, got none of {', '.join(missing[:3])}; save the model "
            "with its head"
        )
    language_model = _wrap(model)
    check_continuation(language_model, name=str(folder))
    return language_model


def _read_config(folder: Path) -> Any:
    check_weights(folder)
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{folder / 'config.json'} must be a JSON file, got {error}; copy it again"
        ) from error
    with refusing_code(folder):
        return AutoConfig.from_pretrained(str(folder), **LOCAL)


def _loader(config: Any) -> Any:
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def _prepared(config: Any) -> Any:
    """Switch dropout off, and name GPT-2's activation so that a single kernel computes it (``gelu_new`` takes nine).

    With dropout, sampling and scoring would have different distributions, and no ratio would begin at 1.
    """
    if getattr(config, "activation_function", None) == "gelu_new":
        config.activation_function = "gelu_pytorch_tanh"
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def _wrap(model: Any) -> LanguageModel:
    config = model.config
    plain = LibrarySeq2Seq if config.is_encoder_decoder else LibraryCausal
    return SHARING.get(config.model_type, plain)(model).eval()


def _new(params: T5Params | CausalParams, tokenizer: Tokenizer) -> Any:
    """Build a network with fresh weights for the ids of a tokenizer."""
    ids = {
        "vocab_size": tokenizer.size,
        "pad_token_id": tokenizer.pad_id,
        "eos_token_id": tokenizer.eos_id,
    }
    if isinstance(params, CausalParams):
        ids["bos_token_id"] = tokenizer.eos_id
        return _new_gpt2(params, ids) if params.kind == "gpt2" else _new_llama(params, ids)
    return _new_t5(params, ids | {"decoder_start_token_id": tokenizer.pad_id})


def _new_t5(params: T5Params, ids: dict[str, Any]) -> Any:
    sizes: dict[str, Any] = {
        "d_model": params.width,
        "d_kv": params.width // params.heads,
        "d_ff": FEED_FORWARD * params.width,
        "num_layers": params.layers,
        "num_decoder_layers": params.layers,
        "num_heads": params.heads,
        "dropout_rate": 0.0,
    }
    return T5ForConditionalGeneration(T5Config(**sizes, **ids))


def _new_gpt2(params: CausalParams, ids: dict[str, Any]) -> Any:
    sizes: dict[str, Any] = {
        "n_embd": params.width,
        "n_layer": params.layers,
        "n_head": params.heads,
        "n_positions": params.max_positions,
    }
    return GPT2LMHeadModel(_prepared(GPT2Config(**sizes, **ids)))


def _new_llama(params: CausalParams, ids: dict[str, Any]) -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": params.width,
        "intermediate_size": FEED_FORWARD * params.width,
        "num_hidden_layers": params.layers,
        "num_attention_heads": params.heads,
        "max_position_embeddings": params.max_positions,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes, **ids))
