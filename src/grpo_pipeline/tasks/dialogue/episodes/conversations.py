"""Continue the replies of a batch while they are drawn: what an environment says is read as tokens that nobody drew.

Axes: P prompts, G conversations of each, L tokens of a conversation; rows n = p * G + g.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_pipeline.tasks.dialogue.episodes.environment import Episode, one_line
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokenizer


@dataclass(frozen=True)
class Stage:
    """Where the conversations about a prompt begin.

    Attributes:
        begin: starts one.
        decode: turns the ids of a reply into text.
        encode: turns an answer of the environment into the ids that follow the end of a reply.
    """

    begin: Callable[[], Episode]
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], list[int]]


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
        self._episodes = [stage.begin() for stage in self._stages]
        self._begun = [0] * len(self._stages)  # place of the first token of the present reply
        self._ids = torch.zeros(len(self._stages), max_tokens, dtype=torch.int64, device=device)
        self._is_told = torch.zeros_like(self._ids, dtype=torch.bool)

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
        return [
            self._answer(row, tokens, place)
            for row, tokens in zip(rows, written.tolist(), strict=True)
        ]

    def _answer(self, row: int, tokens: list[int], place: int) -> bool:
        stage, first = self._stages[row], place + 1
        text = self._episodes[row].answer(stage.decode(tokens[self._begun[row] : place])).text
        if text is None:
            return True
        ids = stage.encode(text)
        self._begun[row] = end = first + len(ids)
        if end >= self._ids.shape[1]:
            return True
        self._ids[row, first:end] = torch.tensor(ids, dtype=torch.int64)
        self._is_told[row, first:end] = True
        return False


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
