"""Play conversations with an environment: a class of the user's that answers each reply and pays for it.

A conversation is played twice: while replies are drawn, for the texts that the language model reads, and when they are
rewarded. An environment must therefore be a pure function of its row and the replies so far. Then a resumed run draws and pays
what the whole run did, and the processes, the cache and the rule for failures of every reward serve this one, too.
"""

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from grpo_pipeline.rewards.functions import load_function


class Environment(Protocol):
    """Interface of an environment; one is made for each conversation, with the options as keyword arguments."""

    def reset(self, row: Mapping[str, Any]) -> None:
        """Begin with a row of the data: ``prompt``, ``answers`` and the other columns."""
        ...

    def step(self, reply: str) -> tuple[str, float, bool]:
        """Answer a reply: the text that is read next, what the reply is paid, and whether the conversation is over."""
        ...


class Step(NamedTuple):
    """An answer of the environment; ``text`` is None where the conversation is over."""

    text: str | None
    reward: float


class Episode:
    """A conversation in progress.

    Args:
        environment: import path of the class.
        options: its keyword arguments.
        turns: largest number of replies.
        row: what it begins with.

    Raises:
        ValueError: if the class cannot be made, or its ``reset`` raises.
    """

    def __init__(
        self, environment: str, options: Mapping[str, Any], turns: int, row: Mapping[str, Any]
    ) -> None:
        self._path, self._left = environment, turns
        try:
            self._environment = load_function(environment)(**options)
            self._environment.reset(row)  # type: ignore[attr-defined]
        except Exception as error:  # whatever a user's class raises
            raise ValueError(
                f"the environment {environment!r} must begin with a row of the data, got {_name(error)} for the prompt "
                f"{row.get('prompt')!r}; correct it"
            ) from error

    def answer(self, reply: str) -> Step:
        """Give a reply, whose line breaks become blanks, to the environment.

        Raises:
            ValueError: if ``step`` raises, or does not return (text, reward, done).
        """
        line = one_line(reply)
        try:
            text, reward, is_done = self._environment.step(line)  # type: ignore[attr-defined]
            paid = float(reward)
            if not isinstance(text, str):
                raise TypeError(f"text must be a str, got {type(text).__name__}")
        except Exception as error:  # whatever a user's class raises
            raise ValueError(
                f"step of the environment {self._path!r} must return (text, reward, done), got {_name(error)} for the reply "
                f"{line!r}; correct it"
            ) from error
        self._left -= 1
        return Step(None if is_done or not self._left else text, paid)


def play(episode: Episode, replies: Sequence[str]) -> list[Step]:
    """Give replies to the environment one after the other, until the conversation is over."""
    steps: list[Step] = []
    for reply in replies:
        steps.append(episode.answer(reply))
        if steps[-1].text is None:
            break
    return steps


def one_line(reply: str) -> str:
    """Join the lines of a reply by blanks: the replies of a conversation are told apart by line breaks."""
    return " ".join(reply.split())


def row_of(prompt: str, answers: Sequence[str], cells: str) -> dict[str, Any]:
    """Build the row that an environment begins with; ``cells`` is the JSON object of the other columns."""
    row: dict[str, Any] = json.loads(cells)
    return row | {"prompt": prompt, "answers": [*answers]}


def check_environment(path: str, options: Mapping[str, Any]) -> None:
    """Check that a class can be imported and has the two methods.

    Raises:
        ValueError: if not, or the options are not JSON.
    """
    try:
        found = load_function(path)
    except ValueError as error:
        raise ValueError(
            f"environment must name an importable class, package.module:Class, got {path!r}: "
            f"{_name(error.__cause__ or error)}; correct the path"
        ) from error
    missing = [name for name in ("reset", "step") if not callable(getattr(found, name, None))]
    if missing:
        raise ValueError(
            f"the environment {path!r} must have a method {missing[0]}, got none; write reset(row) and step(reply)"
        )
    try:
        json.dumps(dict(options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"options of the environment {path!r} must be JSON values, got {_name(error)}; correct them"
        ) from error


def digest_of(path: str) -> str:
    """Compute the SHA-256 of the file that an environment's class is in, in hexadecimal."""
    module = inspect.getmodule(load_function(path))
    return hashlib.sha256(Path(str(getattr(module, "__file__", ""))).read_bytes()).hexdigest()


def _name(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
