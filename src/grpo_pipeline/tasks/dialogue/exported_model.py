"""Read an exported dialogue model from its folder alone: the language model, its tokenizer and its prompt settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grpo_pipeline.core.storage.replacement import find_complete
from grpo_pipeline.core.storage.weights import load_weights
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.dialogue.huggingface_folder import FOLDER
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.build import build_from_config, check_tokenizer
from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import ByteTokenizer
from grpo_pipeline.tasks.dialogue.language_model.folder_tokenizer import read_tokenizer
from grpo_pipeline.tasks.dialogue.language_model.params import (
    LanguageModelParams,
    ReplyParams,
)
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokenizer
from grpo_pipeline.tasks.dialogue.migrate import migrate_language_model
from grpo_pipeline.tasks.dialogue.params import PromptParams
from grpo_pipeline.tasks.dialogue.retriever.params import LearnedRetriever
from grpo_pipeline.tasks.dialogue.retriever.shelf import SHELF_FOLDER, StoryShelf, read_stories
from grpo_pipeline.tasks.dialogue.retriever.towers import Retriever

# Layers with low-rank updates of models exported before ``targets`` existed: queries and values.
EARLIER = {"t5": ("q", "v"), "gpt2": ("c_attn",), "llama": ("q_proj", "v_proj")}


class ExportedEnvironment(NamedTuple):
    """The environment that a model was trained with.

    Attributes:
        path: import path of its class.
        options: keyword arguments of the class.
        turns: largest number of replies in a conversation.
        pool: a process in which it answers, under the time limit of the training.
    """

    path: str
    options: Mapping[str, Any]
    turns: int
    pool: RewardPool


@dataclass(frozen=True)
class ExportedModel:
    """A trained model with its files, ready to reply.

    Attributes:
        language_model: language model with the arm's weights, on the CPU.
        tokenizer: tokenizer of the training.
        prompt: the limits of its prompts.
        replies: the limits of its replies.
        environment: the environment of the training; None without one.
    """

    language_model: LanguageModel
    tokenizer: Tokenizer
    prompt: PromptParams
    replies: ReplyParams
    environment: ExportedEnvironment | None = None

    @property
    def policy(self) -> LanguageModel:
        """Return the language model."""
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
    section = migrate_language_model(config["language_model"])
    if (tuning := section.get("tuning")) and "targets" not in tuning:
        section["tuning"] = tuning | {
            "targets": EARLIER[config["language_model_config"]["model_type"]]
        }
    params = LanguageModelParams.model_validate(section)
    language_model = build_from_config(config["language_model_config"], params)
    prompt = PromptParams.model_validate(config["prompt"])
    if prompt.retriever is not None:
        language_model.retriever = _read_retriever(
            folder, prompt.retriever, config["stories_read"]["top_n"]
        )
    language_model.load_state_dict(dict(weights.tensors))
    tokenizer: Tokenizer = ByteTokenizer()
    if (
        params.tokenizer_folder is not None
    ):  # in the Hugging Face folder; models of before have the files beside the weights
        found = find_complete(folder) or folder
        tokenizer = read_tokenizer(str(found / FOLDER if (found / FOLDER).is_dir() else found))
    check_tokenizer(language_model, tokenizer)
    replies = ReplyParams.model_validate(config["replies"])
    told = config.get("environment")
    environment = None
    if told is not None:
        limit = told["timeout_seconds"]
        pool = RewardPool(PoolParams(workers=1, timeout_seconds=limit, chunk_size=1, cache_size=0))
        environment = ExportedEnvironment(told["environment"], told["options"], told["turns"], pool)
    return ExportedModel(language_model, tokenizer, prompt, replies, environment)


def _read_retriever(folder: Path, params: LearnedRetriever, top_n: int) -> Retriever:
    """Build the retriever of an export with the stories that lie beside it; its weights are loaded with the others."""
    stories = read_stories((find_complete(folder) or folder) / SHELF_FOLDER)
    shelf = StoryShelf(stories, top_n=top_n, query=params.query)
    return Retriever(params, shelf, seed=0)
