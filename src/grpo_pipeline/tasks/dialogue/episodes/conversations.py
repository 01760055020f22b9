"""Continue the replies of a batch while they are drawn: what an environment says is read as tokens that nobody drew.

Axes: P prompts, G conversations of each, L tokens of a conversation; rows n = p * G + g.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from grpo_pipeline.tasks.dialogue.episodes.environment import (
    Episode,
    Step,
    check_same,
    one_line,
)
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokenizer

Found = TypeVar("Found")


@dataclass(frozen=True)
class Stage:
    """Where the conversations about a prompt begin.

    Attributes:
        begin: starts one.
        decode: turns the ids of a reply into text.
        encode: turns an answer of the environment into the ids that follow the end of a reply.
        first: ids of what was said before, in the form of what follows a prompt; they are read, and the next reply is drawn.
        at_once: answers that may be made at the same time.
    """

    begin: Callable[[], Episode]
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], list[int]]
    first: tuple[int, ...] = ()
    at_once: int = 1


class Conversations:
    """The P * G conversations of a batch, and the answers that each has still to read.

    Args:
        stages: P stages.
        group_size: G.
        max_tokens: L; an answer that leaves no room for a reply ends the conversation.
        device: of the tokens.
    """

    def __init__(
        self, stages: Sequence[Stage], group_size: int, max_tokens: int, device: torch.device
    ) -> None:
        self._stages = [stage for stage in stages for _ in range(group_size)]
        self._episodes = self._each(lambda stage: stage.begin(), self._stages)
        self._said: list[list[tuple[str, Step]]] = [[] for _ in self._stages]
        self._begun = [0] * len(self._stages)  # place of the first token of the present reply
        self._ids = torch.zeros(len(self._stages), max_tokens, dtype=torch.int64, device=device)
        self._is_told = torch.zeros_like(self._ids, dtype=torch.bool)
        for row, stage in enumerate(self._stages):
            self._tell(row, stage.first, 0)

    def told(self, rows: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """Return which of these rows read a given token at this place of L, bool, and the tokens; both of the rows' shape."""
        return self._is_told[rows, place], self._ids[rows, place]

    def hear(self, rows: Sequence[int], written: Tensor, place: int) -> list[bool]:
        """Give the replies that ended at this place to their environments.

        Args:
            rows: n rows.
            written: int64 [n, place + 1], all tokens of these rows.
            place: of the end.

        Returns:
            Whether each conversation is over.
        """
        replies = [
            self._stages[row].decode(tokens[self._begun[row] : place])
            for row, tokens in zip(rows, written.tolist(), strict=True)
        ]
        episodes = [self._episodes[row] for row in rows]
        steps = self._each(lambda episode, reply: episode.answer(reply), episodes, replies)
        is_over = []
        for row, reply, step in zip(rows, replies, steps, strict=True):
            stage, first = self._stages[row], place + 1
            self._said[row].append((reply, step))
            is_over.append(step.text is None or not self._tell(row, stage.encode(step.text), first))
        return is_over

    def check_again(self) -> None:
        """Play the longest conversation again; raises as ``check_same`` if it went otherwise."""
        row = max(range(len(self._said)), key=lambda row: len(self._said[row]))
        check_same(self._stages[row].begin(), self._said[row])

    def _each(self, function: Callable[..., Found], *items: Iterable[object]) -> list[Found]:
        """Call a function on each, several at once where they are answered in several processes."""
        at_once = self._stages[0].at_once
        if at_once == 1:
            return list(map(function, *items))
        with ThreadPoolExecutor(at_once) as threads:
            return list(threads.map(function, *items))

    def _tell(self, row: int, ids: Sequence[int], first: int) -> bool:
        """Have these tokens read from a place on; returns whether they leave room for a reply."""
        self._begun[row] = end = first + len(ids)
        if end >= self._ids.shape[1]:
            return False
        self._ids[row, first:end] = torch.tensor(ids, dtype=torch.int64)
        self._is_told[row, first:end] = True
        return True


def replies_of(ids: Sequence[int], is_valid: Sequence[bool], tokenizer: Tokenizer) -> str:
    """Write the language model's replies of a conversation, a line for each; what it was told is left out."""
    return "\n".join(text for text, is_own in _parts(ids, is_valid, tokenizer) if is_own)


def shown(ids: Sequence[int], is_valid: Sequence[bool], tokenizer: Tokenizer) -> str:
    """Write a conversation for people, with what was told in brackets: ``374 [less] 372 [yes]``."""
    parts = _parts(ids, is_valid, tokenizer)
    return " ".join(text if is_own else f"[{text}]" for text, is_own in parts)


def _parts(
    ids: Sequence[int], is_valid: Sequence[bool], tokenizer: Tokenizer
) -> list[tuple[str, bool]]:
    """Cut a conversation behind each end of a reply and each answer: the texts, and whether they are replies."""
    own_places = [place for place, own in enumerate(is_valid) if own]
    end = own_places[-1] + 1 if own_places else 0
    parts: list[tuple[list[int], bool]] = []
    for token, own in zip(ids[:end], is_valid[:end], strict=True):
        is_new = not parts or parts[-1][1] != own
        if is_new or (own and parts[-1][0][-1] in tokenizer.end_ids):
            parts.append(([], own))
        parts[-1][0].append(token)
    return [(one_line(tokenizer.decode(part)), own) for part, own in parts] or [("", True)]
