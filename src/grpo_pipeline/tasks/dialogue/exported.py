"""Read an exported dialogue model from its folder alone: the language model, its tokenizer and its prompt settings."""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pydantic import TypeAdapter
from transformers.utils import logging

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.replacement import find_complete
from grpo_pipeline.core.storage.weights import load_weights
from grpo_pipeline.tasks.dialogue.language_model.base import (
    Encoded,
    LanguageModel,
    prompt_texts,
    story_text,
)
from grpo_pipeline.tasks.dialogue.language_model.build import build_from_config, check_tokenizer
from grpo_pipeline.tasks.dialogue.language_model.params import (
    FolderModelParams,
    LanguageModelParams,
    ReplyParams,
)
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies, sample_replies
from grpo_pipeline.tasks.dialogue.language_model.tokens import (
    ByteTokenizer,
    FolderTokenizer,
    Tokenizer,
    decode_rows,
    encode_texts,
    read_tokenizer,
)
from grpo_pipeline.tasks.dialogue.params import PromptParams
from grpo_pipeline.tasks.exported import Column, Serving

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
    encoded, ends = _read(model, question, stories), _ends(model)
    found = greedy_replies(
        model.language_model, encoded, max_tokens=model.replies.max_tokens, ends=ends
    )
    return decode_rows(model.tokenizer, found.actions[:, 0], found.is_valid[:, 0])[0]


def _ends(model: ExportedModel) -> tuple[int, ...]:
    return *model.tokenizer.end_ids, model.tokenizer.pad_id


def _read(model: ExportedModel, question: str, stories: Sequence[str]) -> Encoded:
    kind = model.language_model.kind
    tokens = encode_texts(
        model.tokenizer,
        prompt_texts(question, stories, kind=kind),
        max_tokens=model.prompt.max_tokens,
        too_long=model.prompt.too_long,
        with_end=kind == "seq2seq",
        padding="left" if kind == "causal" else "right",
    )
    return model.language_model.encode(tokens.ids[None], tokens.is_token[None])


@torch.no_grad()
def draw_replies(
    model: ExportedModel, question: str, stories: Sequence[str], *, samples: int, seed: int
) -> list[str]:
    """Return sampled replies to one question; they follow from its texts and the seed, and from no other question."""
    content = hashlib.sha256("\0".join([question, *stories]).encode()).digest()
    generator = step_generator(
        seed, int.from_bytes(content[:8], "big"), stream=Stream.PREDICTION, device="cpu"
    )
    drawn = sample_replies(
        model.language_model,
        _read(model, question, stories),
        samples,
        params=model.replies,
        ends=_ends(model),
        generator=generator,
    )
    return decode_rows(model.tokenizer, drawn.actions[0], drawn.is_valid[0])


# New prompts as a table, of a file or of a request.

MOST_ROWS, MOST_SAMPLES = 256, 64
"""What one request to a server may ask for."""


def answer(model: ExportedModel, table: pd.DataFrame, *, samples: int, seed: int) -> pd.DataFrame:
    """Reply to every row of a table; all of them, or none.

    Args:
        model: of ``read_exported``.
        table: column ``question``, "persona: … context: …", and where there are any ``stories``: a list of texts, or of
            mappings with ``title`` and ``text``, or JSON of such a list.
        samples: sampled replies of each row, beside the likeliest one; 0 for none.
        seed: of these.

    Returns:
        ``reply``, of the likeliest token each time, and ``replies``, the list of sampled ones.

    Raises:
        ValueError: naming the first row that is not right, counted from 0.
    """
    if "question" not in table.columns:
        raise ValueError(
            f"the prompts must have a column 'question', got {list(table.columns)}; add it"
        )
    if samples < 0 or seed < 0:
        raise ValueError(
            f"samples and seed must be at least 0, got {samples} and {seed}; correct it"
        )
    rows = []
    for number, row in enumerate(table.to_dict("records")):
        try:
            question, stories = _prompt(row)
            reply = write_reply(model, question, stories)
            drawn = (
                draw_replies(model, question, stories, samples=samples, seed=seed)
                if samples
                else []
            )
        except ValueError as error:
            raise ValueError(f"row {number} of the prompts: {error}") from error
        rows.append({"reply": reply, "replies": drawn})
    return pd.DataFrame(rows, columns=["reply", "replies"], dtype=object)


def _prompt(row: Mapping[Any, Any]) -> tuple[str, list[str]]:
    question, told = row["question"], row.get("stories")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"question must be a text, got {question!r}; fill it in")
    if isinstance(told, str) and told.strip():
        try:
            told = json.loads(told)
        except json.JSONDecodeError as error:
            raise ValueError(f"stories must be a list in JSON, got {error}; correct it") from error
    if not isinstance(told, list | tuple):
        if told is None or told == "" or told != told:  # NaN: an empty cell
            return question, []
        raise ValueError(f"stories must be a list, got {told!r}; correct it")
    return question, [_story(story) for story in told]


def _story(story: Any) -> str:
    if isinstance(story, str):
        return story
    if isinstance(story, Mapping) and {"title", "text"} <= story.keys():
        return story_text(str(story["title"]), str(story["text"]))
    raise ValueError(f"a story must be a text, or have title and text, got {story!r}; correct it")


def answer_request(
    model: ExportedModel, table: pd.DataFrame, *, samples: int, seed: int
) -> pd.DataFrame:
    """Reply to every row of a request (``answer``), of which a server takes so many at once."""
    if len(table) > MOST_ROWS or samples > MOST_SAMPLES:
        raise ValueError(
            f"a request must have at most {MOST_ROWS} rows and {MOST_SAMPLES} samples, got {len(table)} and {samples}; send "
            "several"
        )
    return answer(model, table, samples=samples, seed=seed)


SERVING = Serving(
    load=read_exported,
    answer=answer_request,
    inputs=lambda config: [Column("question", "string", True), Column("stories", "string[]")],
    outputs=lambda config: [Column("reply", "string", True), Column("replies", "string[]", True)],
    options={"seed": 0, "samples": 0},
    example=lambda: pd.DataFrame({"question": ["persona: i like tea . context: hello"]}),
    needs=frozenset({"language_model", "prompt", "replies"}),
    requirements=(
        "mlflow",
        "numpy",
        "pandas",
        "peft",
        "pydantic",
        "safetensors",
        "scipy",
        "tokenizers",
        "torch",
        "tqdm",
        "transformers",
    ),
)
