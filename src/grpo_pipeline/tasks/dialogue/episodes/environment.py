"""Play conversations with an environment: a class of the user's that answers each reply and pays for it.

A conversation is played twice: while replies are drawn, for the texts that the language model reads, and when they are
rewarded. An environment must therefore be a pure function of its row and the replies so far. Then a resumed run draws and pays
what the whole run did, and the processes, the cache and the rule for failures of every reward serve this one, too.
"""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from grpo_pipeline.rewards.functions import load_function, shorten


class Environment(Protocol):
    """Interface of an environment; one is made for each conversation, with the options as keyword arguments."""

    def reset(self, row: Mapping[str, Any]) -> None:
        """Begin with a row of the data: ``prompt``, ``answers`` and the other columns."""
        ...

    def step(self, reply: str) -> tuple[str, float, bool]:
        """Answer a reply: the text that is read next, what the reply is paid, and whether the conversation is over."""
        ...


class EnvironmentRaisedError(Exception):
    """An environment has raised in another process; the text has the type of the error and its sentence."""


class Step(NamedTuple):
    """An answer of the environment; ``text`` is None where the conversation is over."""

    text: str | None
    reward: float


def make_here(path: str, options: Mapping[str, Any]) -> Environment:
    """Make an environment in this process, whose answers nothing limits."""
    return cast(Environment, load_function(path)(**options))


def read_answer(returned: Any) -> tuple[str, float, bool]:
    """Read what ``step`` has returned.

    Raises:
        TypeError, ValueError: if it is something else than (text, reward, done).
    """
    text, reward, is_done = returned
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, got {type(text).__name__}")
    return text, float(reward), bool(is_done)


class Episode:
    """A conversation in progress.

    Args:
        environment: import path of the class.
        options: its keyword arguments.
        turns: largest number of replies.
        row: what it begins with.
        make: makes the environment.

    Raises:
        ValueError: if the class cannot be made, or its ``reset`` raises or takes too long.
    """

    def __init__(
        self,
        environment: str,
        options: Mapping[str, Any],
        turns: int,
        row: Mapping[str, Any],
        *,
        make: Callable[[str, Mapping[str, Any]], Environment] = make_here,
    ) -> None:
        self.name, self._left = environment, turns
        self._prompt = shorten(str(row.get("prompt")))
        try:
            self._environment = make(environment, options)
            self._environment.reset(row)
        except (Exception, SystemExit) as error:  # whatever a user's class raises
            raise ValueError(
                f"the environment {environment!r} must begin with a row of the data, got {name_of(error)} for the prompt "
                f"{self._prompt}; correct it"
            ) from error

    def answer(self, reply: str) -> Step:
        """Give a reply, whose line breaks become blanks, to the environment.

        Raises:
            ValueError: if ``step`` raises, takes too long, or does not return (text, reward, done).
        """
        line = one_line(reply)
        try:
            text, paid, is_done = read_answer(self._environment.step(line))
        except (Exception, SystemExit) as error:  # whatever a user's class raises
            raise ValueError(
                f"step of the environment {self.name!r} must return (text, reward, done), got {name_of(error)} for the reply "
                f"{shorten(line)} to the prompt {self._prompt}; correct it"
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


def check_same(episode: Episode, said: Sequence[tuple[str, Step]]) -> None:
    """Play a conversation again on a new episode, and compare.

    Args:
        episode: a new one of the same row.
        said: the replies, each with the answer to it.

    Raises:
        ValueError: if an answer or a payment differs.
    """
    for reply, step in said:
        again = episode.answer(reply)
        if str(again) != str(step):  # NaN is itself here
            raise ValueError(
                f"the environment {episode.name!r} must answer the same replies to the same row alike, got {_shown(step)}, then "
                f"{_shown(again)}, for the reply {shorten(reply)}; let it depend on them alone (no clock, no unseeded draw)"
            )


def _shown(step: Step) -> str:
    text = "the end" if step.text is None else shorten(step.text)
    return f"{text} and a reward of {step.reward!r}"


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
            f"{name_of(error.__cause__ or error)}; correct the path"
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
            f"options of the environment {path!r} must be JSON values, got {name_of(error)}; correct them"
        ) from error


def digest_of(path: str) -> str:
    """Compute the SHA-256 of the file that an environment's class is in, in hexadecimal."""
    module = inspect.getmodule(load_function(path))
    return hashlib.sha256(Path(str(getattr(module, "__file__", ""))).read_bytes()).hexdigest()


def name_of(error: BaseException) -> str:
    """Write the type of an error and its sentence on one line."""
    if isinstance(error, EnvironmentRaisedError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
