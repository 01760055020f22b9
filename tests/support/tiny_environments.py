"""Environments for tests, and a tokenizer with which a random model ends its replies often."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import EOS, ByteTokenizer

ECHO = "tiny_environments:Echo"


class Echo:
    """Say how long the reply was, in letters; pay a share for each letter, and one for the answer of the row."""

    def __init__(self, *, pay: float = 0.01, stop: int = 99) -> None:
        self.pay, self.stop = pay, stop

    def reset(self, row: Mapping[str, Any]) -> None:
        self.answers, self.said = row["answers"], 0

    def step(self, reply: str) -> tuple[str, float, bool]:
        self.said += 1
        return "ab"[len(reply) % 2] * self.said, self.pay * len(reply) + (reply in self.answers), self.said >= self.stop


class Broken(Echo):
    """Answer with something else than three values."""

    def step(self, reply: str) -> Any:
        return reply


class Mute(Echo):
    """Answer with no text."""

    def step(self, reply: str) -> Any:
        return None, 0.0, False


class Unready(Echo):
    """Refuse every row."""

    def reset(self, row: Mapping[str, Any]) -> None:
        raise KeyError(row["prompt"])


class Ending(ByteTokenizer):
    """Every second byte ends a reply."""

    end_ids = (EOS, *range(4, ByteTokenizer.size, 2))

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode([i for i in ids if i not in self.end_ids])
