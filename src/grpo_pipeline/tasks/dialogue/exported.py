"""Read an exported dialogue model from its folder alone: the language model, its tokenizer and its prompt settings."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from transformers.utils import logging

from grpo_pipeline.core.storage.files import find_complete
from grpo_pipeline.core.storage.weights import load_weights
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel, prompt_texts
from grpo_pipeline.tasks.dialogue.language_model.build import build_from_config, check_tokenizer
from grpo_pipeline.tasks.dialogue.language_model.params import (
    FolderModelParams,
    LanguageModelParams,
    ReplyParams,
)
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies
from grpo_pipeline.tasks.dialogue.language_model.tokens import (
    ByteTokenizer,
    FolderTokenizer,
    Tokenizer,
    decode_rows,
    encode_texts,
    read_tokenizer,
)
from grpo_pipeline.tasks.dialogue.params import PromptParams

# The language model as a Hugging Face folder: config.json, model.safetensors and the tokenizer, which transformers loads by
# itself.
#
# Low-rank updates are merged into the weights they update, W + (alpha / r) B A, so that nothing but transformers is needed to
# load the folder and no key is missing or unexpected. What this project reads back is the model beside it, with the updates
# apart.

FOLDER = "huggingface"


def write_huggingface(language_model: LanguageModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a language model so that ``AutoModelFor….from_pretrained(folder)`` gives the same log-probabilities.

    Args:
        language_model: of ``build_language_model``, with or without low-rank updates; it stays as it is.
        tokenizer: that it was trained with. The byte-level one is written as transformers' ``ByT5Tokenizer``, whose ids are the
            same.
        folder: exists and is empty.
    """
    with _without_bars():
        plain_model(language_model).save_pretrained(folder)
    if isinstance(tokenizer, FolderTokenizer):
        for name, content in tokenizer.files.items():
            if name != "config.json":
                (folder / name).write_bytes(content)
    else:
        # Here and not above: reading a model back needs none of it.
        from transformers import ByT5Tokenizer

        ByT5Tokenizer(extra_ids=0).save_pretrained(folder)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar of its own for every model that is written."""
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def plain_model(language_model: LanguageModel) -> Any:
    """Return the language model's model without low-rank updates: itself where it has none, else a copy with them merged."""
    if not any("lora_" in name for name, _ in language_model.model.named_parameters()):
        return language_model.model
    from peft.tuners.lora import LoraLayer

    model = copy.deepcopy(language_model.model)
    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module.get_base_layer())
    return model


@dataclass(frozen=True)
class ExportedModel:
    """A trained model with its files, ready to be written.

    Attributes:
        language_model: with the arm's weights, on the CPU.
        tokenizer: that it was trained with.
        prompt: the limits of its prompts.
        replies: the limits of its replies.
    """

    language_model: LanguageModel
    tokenizer: Tokenizer
    prompt: PromptParams
    replies: ReplyParams

    @property
    def policy(self) -> LanguageModel:
        """The language model."""
        return self.language_model


def read_exported(folder: Path) -> ExportedModel:
    """Read a model that an arm of the dialogue task has left, ``data/06_models/dialogue/<arm>/model/<version>/model``.

    A Hugging Face folder that it was trained from is not needed.

    Raises:
        FileNotFoundError: if nothing is there, or an export of before has no tokenizer.
        CorruptFolderError: if a file is missing or damaged.
        ValueError: if the model is another task's.
    """
    weights = load_weights(folder)
    config = weights.config
    if config.get("task") != "dialogue":
        raise ValueError(
            f"{folder} must hold a model of the dialogue task, got {config.get('task')!r}; name another folder"
        )
    for old, new in (
        ("reader", "language_model"),
        ("reader_config", "language_model_config"),
    ):  # as earlier exports say
        config = {new: config[old], **config} if old in config else config
    params: LanguageModelParams = TypeAdapter(LanguageModelParams).validate_python(
        config["language_model"]
    )
    language_model = build_from_config(config["language_model_config"], params.lora)
    language_model.load_state_dict(dict(weights.tensors))
    has_words = isinstance(params, FolderModelParams) and params.tokenizer == "folder"
    tokenizer: Tokenizer = ByteTokenizer()
    if has_words:  # in the Hugging Face folder; models of before have the files beside the weights
        found = find_complete(folder) or folder
        tokenizer = read_tokenizer(str(found / FOLDER if (found / FOLDER).is_dir() else found))
    check_tokenizer(language_model, tokenizer)
    sections = (
        PromptParams.model_validate(config["prompt"]),
        ReplyParams.model_validate(config["replies"]),
    )
    return ExportedModel(language_model, tokenizer, *sections)


@torch.no_grad()
def write_reply(model: ExportedModel, question: str, stories: Sequence[str]) -> str:
    """Return the greedy reply to one question: the likeliest token each time.

    Args:
        model: of ``read_exported``.
        question: "persona: … context: …".
        stories: of ``language_model.base.story_text``.

    Raises:
        ValueError: if the prompt is too long and ``prompt.too_long`` is ``refuse``, or does not fit the language model.
    """
    kind = model.language_model.kind
    tokens = encode_texts(
        model.tokenizer,
        prompt_texts(question, stories, kind=kind),
        max_tokens=model.prompt.max_tokens,
        too_long=model.prompt.too_long,
        with_end=kind == "seq2seq",
        padding="left" if kind == "causal" else "right",
    )
    encoded = model.language_model.encode(tokens.ids[None], tokens.is_token[None])
    ends = *model.tokenizer.end_ids, model.tokenizer.pad_id
    found = greedy_replies(
        model.language_model, encoded, max_tokens=model.replies.max_tokens, ends=ends
    )
    return decode_rows(model.tokenizer, found.actions[:, 0], found.is_valid[:, 0])[0]
