"""Environments for tests, and a tokenizer with which a random model ends its replies often."""

import os
import random
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
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


class Wayward(Echo):
    """Do what no environment should."""

    def __init__(self, *, how: str) -> None:
        super().__init__()
        self.how = how

    def step(self, reply: str) -> Any:
        match self.how:
            case "hang":
                time.sleep(1000)
            case "search for ever":  # and never let another thread run
                re.match(r"(a+)+$", "a" * 64 + "b")
            case "die":
                os._exit(3)
            case "exit":
                sys.exit(3)
            case "say much":
                return "b" * 1_000_000, 0.5, False
            case "say what comes to mind":
                return str(random.random()), 0.5, False
            case "pay what comes to mind":
                return "b", random.random(), False
        return super().step(reply)


class Meeting(Echo):
    """Wait a while for a process beside this one, and say how many have come."""

    def __init__(self, *, folder: str) -> None:
        self.folder = Path(folder)

    def reset(self, row: Mapping[str, Any]) -> None:
        pass

    def step(self, reply: str) -> tuple[str, float, bool]:
        (self.folder / str(os.getpid())).touch()
        until = time.monotonic() + 20.0
        while len(met := [*self.folder.iterdir()]) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        return f"{len(met)}", 0.0, True


class Ending(ByteTokenizer):
    """Every second byte ends a reply."""

    end_ids = (EOS, *range(4, ByteTokenizer.size, 2))

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode([i for i in ids if i not in self.end_ids])
