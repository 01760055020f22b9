"""Hold the data of a run: examples, and their prompts and reference replies as tokens."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_pipeline.tasks.dialogue.data.examples import DialogueExamples
from grpo_pipeline.tasks.dialogue.episodes.conversations import Stage
from grpo_pipeline.tasks.dialogue.episodes.demonstrations import demonstration
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import (
    ModelKind,
    frame_of,
    prompt_ids,
    reply_ids,
    story_text,
)
from grpo_pipeline.tasks.dialogue.language_model.token_table import TokenTable, stack_rows
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokenizer
from grpo_pipeline.tasks.dialogue.params import PromptParams


@dataclass(frozen=True)
class DialogueData:
    """Data for training and testing an arm; row r of each part is example r.

    Attributes:
        examples: the table and the stories.
        prompts: the texts that the language model reads, the same number for every example.
        references: the reference replies, each with its end.
        own: of conversations, 1 for each token of ``references`` that is the language model's, else 0; None of single replies.
    """

    examples: DialogueExamples
    prompts: TokenTable
    references: TokenTable
    own: TokenTable | None = None


def tokenise_examples(
    examples: DialogueExamples,
    tokenizer: Tokenizer,
    *,
    kind: ModelKind,
    prompt: PromptParams,
    max_reply_tokens: int,
    stages: Sequence[Stage] = (),
) -> tuple[DialogueData, dict[str, Any]]:
    """Tokenise every example once, and count the cut texts.

    A prompt text that is too long loses its beginning, a reference reply its last tokens; the end token of both stays. A causal
    language model's prompt has no end token: the reply continues it.

    Args:
        examples: examples with retrieved stories.
        tokenizer: tokenizer of the language model.
        kind: kind of the language model; decides how texts are joined.
        prompt: limits of the prompts.
        max_reply_tokens: largest length of a reference reply, its end included.
        stages: of each example where its conversations begin; the lines of an answer are then its replies. Empty without an
            environment.

    Returns:
        The data, and a report by split: numbers of texts, the longest ones, and the number of cut texts.

    Raises:
        ValueError: if a text is too long and is to be refused (names the example), or as ``reply_ids``.
    """
    begin, end = frame_of(tokenizer, prompt, kind=kind)
    room = prompt.max_tokens - len(begin) - len(end)
    stories = {name: story_text(title, text) for name, title, text in _stories(examples)}
    table = examples.table
    told = [[stories[name] for name in names] for names in table["story_ids"]]
    asked = list(zip(table["question"], told, map(json.loads, table["messages"]), strict=True))
    read = [
        prompt_ids(tokenizer, question, texts, kind=kind, prompt=prompt, messages=messages)
        for question, texts, messages in asked
    ]
    if prompt.too_long == "refuse":
        _refuse_long(examples, read, room)
    prompts = [[begin + text[-room:] + end for text in row] for row in read]
    own: TokenTable | None = None
    if not stages:
        said = [
            [reply_ids(tokenizer, answer, *each, prompt=prompt) for answer in answers]
            for answers, each in zip(table["answers"], asked, strict=True)
        ]
    else:
        said, is_own = _play(table["answers"].tolist(), asked, stages, tokenizer, prompt)
        own = stack_rows([[[*flags[: max_reply_tokens - 1], 1] for flags in row] for row in is_own])
    references = [
        [[*text[: max_reply_tokens - 1], tokenizer.eos_id] for text in row] for row in said
    ]
    report = {
        "max_prompt_tokens": prompt.max_tokens,
        "max_reply_tokens": max_reply_tokens,
        "splits": {
            name: _count(
                read,
                said,
                np.asarray(rows),
                limits=(room, max_reply_tokens - 1),
            )
            for name, rows in examples.table.groupby("split", sort=True).indices.items()
        },
    }
    return DialogueData(examples, stack_rows(prompts), stack_rows(references), own), report


def _play(
    answers: Sequence[Sequence[str]],
    asked: Sequence[Any],
    stages: Sequence[Stage],
    tokenizer: Tokenizer,
    prompt: PromptParams,
) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
    """Play the answers: of each row and answer the tokens without the last end, and 1 where they are replies."""
    played = []
    for texts, each, stage in zip(answers, asked, stages, strict=True):
        firsts = [reply_ids(tokenizer, text.split("\n")[0], *each, prompt=prompt) for text in texts]
        played.append(
            [demonstration(*pair, stage, tokenizer) for pair in zip(firsts, texts, strict=True)]
        )
    said = [[ids[:-1] for ids, _ in row] for row in played]
    return said, [[[int(own) for own in flags[:-1]] for _, flags in row] for row in played]


def _stories(examples: DialogueExamples) -> Any:
    return zip(*(examples.stories[column] for column in ("story_id", "title", "text")), strict=True)


def _refuse_long(
    examples: DialogueExamples, read: Sequence[Sequence[Sequence[int]]], room: int
) -> None:
    for row, texts in enumerate(read):
        longest = max(map(len, texts))
        if longest > room:
            raise ValueError(
                f"the prompt of example {examples.table['example_id'].iloc[row]!r} must have at most {room} tokens in a text, "
                f"got {longest}; raise dialogue.prompt.max_tokens, or set dialogue.prompt.too_long: keep_end"
            )


def _count(read: Any, said: Any, rows: np.ndarray, *, limits: tuple[int, int]) -> dict[str, int]:
    prompts, references = (
        np.asarray([len(t) for row in rows for t in texts[row]]) for texts in (read, said)
    )
    return {
        "examples": len(rows),
        "prompt_texts": len(prompts),
        "longest_prompt_text": int(prompts.max()),
        "cut_prompt_texts": int((prompts > limits[0]).sum()),
        "examples_with_a_cut_prompt": sum(
            any(len(t) > limits[0] for t in read[row]) for row in rows
        ),
        "reference_replies": len(references),
        "longest_reference_reply": int(references.max(initial=0)),
        "cut_reference_replies": int((references > limits[1]).sum()),
    }
