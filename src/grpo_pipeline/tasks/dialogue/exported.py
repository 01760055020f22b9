"""An exported model by itself: the reader, its tokenizer and how it was asked, from the model's folder alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter

from grpo_pipeline.core.atomic import find_complete
from grpo_pipeline.core.weights import load_weights
from grpo_pipeline.tasks.dialogue.byte_tokenizer import ByteTokenizer
from grpo_pipeline.tasks.dialogue.folder_tokenizer import read_tokenizer
from grpo_pipeline.tasks.dialogue.huggingface import FOLDER
from grpo_pipeline.tasks.dialogue.reader import Reader
from grpo_pipeline.tasks.dialogue.reader_build import build_from_config, check_tokenizer
from grpo_pipeline.tasks.dialogue.reader_params import FolderReaderParams, ReaderParams, ReplyParams
from grpo_pipeline.tasks.dialogue.reader_text import reader_texts
from grpo_pipeline.tasks.dialogue.rollouts import greedy_replies
from grpo_pipeline.tasks.dialogue.task_params import PromptParams
from grpo_pipeline.tasks.dialogue.tokens import Tokenizer, decode_rows, encode_texts


@dataclass(frozen=True)
class ExportedModel:
    """A trained model with its files, ready to be written.

    Attributes:
        reader: with the arm's weights, on the CPU.
        tokenizer: that it was trained with.
        prompt: the limits of its prompts.
        replies: the limits of its replies.
    """

    reader: Reader
    tokenizer: Tokenizer
    prompt: PromptParams
    replies: ReplyParams

    @property
    def policy(self) -> Reader:
        """The reader."""
        return self.reader


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
        raise ValueError(f"{folder} must hold a model of the dialogue task, got {config.get('task')!r}; name another folder")
    params: ReaderParams = TypeAdapter(ReaderParams).validate_python(config["reader"])
    reader = build_from_config(config["reader_config"], params.lora)
    reader.load_state_dict(dict(weights.tensors))
    has_words = isinstance(params, FolderReaderParams) and params.tokenizer == "folder"
    tokenizer = _read_tokenizer(folder) if has_words else ByteTokenizer()
    check_tokenizer(reader, tokenizer)
    sections = PromptParams.model_validate(config["prompt"]), ReplyParams.model_validate(config["replies"])
    return ExportedModel(reader, tokenizer, *sections)


@torch.no_grad()
def write_reply(model: ExportedModel, question: str, stories: Sequence[str]) -> str:
    """Return the greedy reply to one question: the likeliest token each time.

    Args:
        model: of ``read_exported``.
        question: "persona: … context: …".
        stories: of ``reader_text.story_text``.

    Raises:
        ValueError: if the prompt is too long and ``prompt.too_long`` is ``refuse``, or does not fit the reader.
    """
    kind = model.reader.kind
    tokens = encode_texts(
        model.tokenizer,
        reader_texts(question, stories, kind=kind),
        max_tokens=model.prompt.max_tokens,
        too_long=model.prompt.too_long,
        with_end=kind == "seq2seq",
        padding="left" if kind == "causal" else "right",
    )
    encoded = model.reader.encode(tokens.ids[None], tokens.is_token[None])
    ends = model.tokenizer.eos_id, model.tokenizer.pad_id
    found = greedy_replies(model.reader, encoded, max_tokens=model.replies.max_tokens, ends=ends)
    return decode_rows(model.tokenizer, found.actions[:, 0], found.is_valid[:, 0])[0]


def _read_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of the model's Hugging Face folder; models of before have its files beside the weights."""
    found = find_complete(folder) or folder
    return read_tokenizer(str(found / FOLDER if (found / FOLDER).is_dir() else found))
