"""Reply to new prompts in a table, from a file or a request."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.tasks.dialogue.data.prompt_rows import as_turn, read_messages, without_answer
from grpo_pipeline.tasks.dialogue.data.question import parse_question
from grpo_pipeline.tasks.dialogue.episodes.conversations import Stage, replies_of
from grpo_pipeline.tasks.dialogue.exported_conversation import payment, stage_of
from grpo_pipeline.tasks.dialogue.exported_model import ExportedModel
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import (
    Message,
    frame_of,
    prompt_ids,
    story_text,
)
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import ReplyRollouts
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies, sample_replies
from grpo_pipeline.tasks.dialogue.language_model.tokens import decode_rows, pad_rows
from grpo_pipeline.tasks.dialogue.list_cell import read_list

MOST_ROWS, MOST_SAMPLES = 256, 64
"""What one request to a server may ask for."""
PLAYED = ("transcript", "paid", "transcripts", "payments")
"""Columns of conversations that were played."""


@torch.no_grad()
def write_reply(
    model: ExportedModel,
    question: str,
    stories: Sequence[str],
    messages: Sequence[Message] = (),
    *,
    stage: Stage | None = None,
) -> str:
    """Write the greedy reply to a question: the likeliest token each time.

    Args:
        model: result of ``read_exported``.
        question: "persona: … context: …".
        stories: results of ``prompt_text.story_text``.
        messages: the question as a conversation, for a model with a chat template.
        stage: where a conversation about the question begins; its replies are then the lines of the text. On a stage on which
            something has been said the text is the next reply.

    Raises:
        ValueError: if the prompt is too long and ``prompt.too_long`` is ``refuse``, or does not fit the language model; or if
            the environment fails.
    """
    encoded = _read(model, question, stories, messages, stage)
    found = greedy_replies(
        model.language_model, encoded, max_tokens=model.replies.max_tokens, ends=_ends(model)
    )
    return _texts(model, found, stage)[0]


def _texts(model: ExportedModel, found: ReplyRollouts, stage: Stage | None) -> list[str]:
    """Decode the G replies to a prompt; of a conversation that was played from its beginning a line for each reply."""
    actions, is_valid = found.actions[0], found.is_valid[0]  # [G, L]
    if stage is None or stage.first:
        return decode_rows(model.tokenizer, actions, is_valid)
    pairs = zip(actions.tolist(), is_valid.tolist(), strict=True)
    return [replies_of(*pair, model.tokenizer) for pair in pairs]


def _ends(model: ExportedModel) -> tuple[int, ...]:
    return *model.tokenizer.end_ids, model.tokenizer.pad_id


def _read(
    model: ExportedModel,
    question: str,
    stories: Sequence[str],
    messages: Sequence[Message],
    stage: Stage | None,
) -> Encoded:
    kind, tokenizer, prompt = model.language_model.kind, model.tokenizer, model.prompt
    begin, end = frame_of(tokenizer, prompt, kind=kind)
    room = prompt.max_tokens - len(begin) - len(end)
    texts = prompt_ids(tokenizer, question, stories, kind=kind, prompt=prompt, messages=messages)
    for number, text in enumerate(texts):
        if prompt.too_long == "refuse" and len(text) > room:
            raise ValueError(
                f"text {number} must have at most {room} tokens, got {len(text)}; shorten it, or train with a larger "
                "dialogue.prompt.max_tokens"
            )
    tokens = pad_rows(
        [begin + text[-room:] + end for text in texts],
        pad_id=tokenizer.pad_id,
        padding="left" if kind == "causal" else "right",
    )
    encoded = model.language_model.encode(tokens.ids[None], tokens.is_token[None])
    return encoded if stage is None else replace(encoded, stages=PerPrompt([stage]))


@torch.no_grad()
def draw_replies(
    model: ExportedModel,
    question: str,
    stories: Sequence[str],
    messages: Sequence[Message] = (),
    *,
    stage: Stage | None = None,
    samples: int,
    seed: int,
) -> list[str]:
    """Draw replies to a question; they follow from its texts and the seed, and from no other question; see ``write_reply``."""
    content = hashlib.sha256("\0".join([question, *stories]).encode()).digest()
    generator = step_generator(
        seed, int.from_bytes(content[:8], "big"), stream=Stream.PREDICTION, device="cpu"
    )
    drawn = sample_replies(
        model.language_model,
        _read(model, question, stories, messages, stage),
        samples,
        params=model.replies,
        ends=_ends(model),
        generator=generator,
    )
    return _texts(model, drawn, stage)


def answer(model: ExportedModel, table: pd.DataFrame, *, samples: int, seed: int) -> pd.DataFrame:
    """Reply to every row of a table; an error in a row refuses the whole table.

    Args:
        model: result of ``read_exported``.
        table: column ``question``, "persona: … context: …" or a list of messages, and optionally ``stories``: a list of texts, or
            of mappings with ``title`` and ``text``, or JSON of such a list. For a model that was trained with an environment
            also what this reads of a row; or ``earlier_turns``, a reply and what was said to it in turn, for the next reply.
        samples: number of sampled replies of each row, beside the likeliest reply; 0 for none.
        seed: seed of the sampled replies.

    Returns:
        ``reply``, of the likeliest token each time, and ``replies``, the list of sampled replies. With an environment also
        ``transcript`` and ``paid`` of the former, and ``transcripts`` and ``payments`` of the latter; empty beside
        ``earlier_turns``.

    Raises:
        ValueError: a row is invalid. The sentence names the first such row, counted from 0.
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
            rows.append(_answer(model, row, samples=samples, seed=seed))
        except ValueError as error:
            raise ValueError(f"row {number} of the prompts: {error}") from error
    names = ["reply", "replies", *(() if model.environment is None else PLAYED)]
    return pd.DataFrame(rows, columns=names, dtype=object)


def _answer(
    model: ExportedModel, row: Mapping[Any, Any], *, samples: int, seed: int
) -> dict[str, Any]:
    """Reply to a row, and play the conversation about it where there is one."""
    prompt = _with_stories(model, *_prompt(row))
    stage = stage_of(model, row, prompt[0])
    reply = write_reply(model, *prompt, stage=stage)
    drawn = draw_replies(model, *prompt, stage=stage, samples=samples, seed=seed) if samples else []
    found: dict[str, Any] = {"reply": reply, "replies": drawn}
    if stage is None or stage.first:
        return found | dict.fromkeys(PLAYED)  # an empty cell is null, which JSON knows
    transcript, paid = payment(stage, reply)
    others = [payment(stage, text) for text in drawn]
    played = (transcript, paid, [one.transcript for one in others], [one.paid for one in others])
    return found | dict(zip(PLAYED, played, strict=True))


def _prompt(row: Mapping[Any, Any]) -> tuple[str, list[str], Sequence[Message]]:
    question = row["question"]
    messages: Sequence[Message] = ()
    if isinstance(question, list):
        messages = without_answer(read_messages(row, "question"))
        question = "\n".join(map(as_turn, messages))
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"question must be a text, got {question!r}; fill it in")
    told = read_list(row.get("stories"), name="stories") or []
    return question, [_story(story) for story in told], messages


def _with_stories(
    model: ExportedModel, question: str, stories: list[str], messages: Sequence[Message]
) -> tuple[str, list[str], Sequence[Message]]:
    """Add the stories that the model's retriever chooses, where none are given."""
    retriever = model.language_model.retriever
    if stories or retriever is None:
        return question, stories, messages
    persona, turns = parse_question(question)
    asked = pd.DataFrame(
        {"persona": [persona], "context": ["\n".join(turns)], "subject_id": "", "partner_id": ""}
    )
    (chosen,) = retriever.choose(retriever.shelf.asked(asked)).tolist()
    return question, [retriever.shelf.texts[number] for number in chosen], messages


def _story(story: Any) -> str:
    if isinstance(story, str):
        return story
    if isinstance(story, Mapping) and {"title", "text"} <= story.keys():
        return story_text(str(story["title"]), str(story["text"]))
    raise ValueError(f"a story must be a text, or have title and text, got {story!r}; correct it")


def answer_request(
    model: ExportedModel, table: pd.DataFrame, *, samples: int, seed: int
) -> pd.DataFrame:
    """Reply to every row of a request by ``answer``; refuses more than a server writes at once."""
    if len(table) > MOST_ROWS or samples > MOST_SAMPLES:
        raise ValueError(
            f"a request must have at most {MOST_ROWS} rows and {MOST_SAMPLES} samples, got {len(table)} and {samples}; send "
            "several"
        )
    return answer(model, table, samples=samples, seed=seed)
