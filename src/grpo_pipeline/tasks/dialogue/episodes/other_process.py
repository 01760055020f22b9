"""Let environments answer in the processes of a reward pool: in parallel, and within its limit of time."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.dialogue.episodes.environment import (
    Environment,
    EnvironmentRaisedError,
    make_here,
    name_of,
    read_answer,
)

ANSWER = f"{__name__}:answer"
MOST_KEPT = 4096
"""Conversations that a process remembers; one that it has forgotten is played again up to where it is."""
_NUMBERS = count()
_KEPT: OrderedDict[int, tuple[Environment, int]] = OrderedDict()
"""In a process that answers: number of a conversation -> its environment, and the replies that this has heard."""


class OtherProcessEnvironment:
    """An environment in a process of a pool.

    Args:
        pool: has processes.
        path: of the class.
        options: its keyword arguments.
    """

    def __init__(self, pool: RewardPool, path: str, options: Mapping[str, Any]) -> None:
        self._pool, self._number = pool, next(_NUMBERS)
        self._path, self._options = path, dict(options)
        self._row: Mapping[str, Any] = {}
        self._replies: list[str] = []

    def reset(self, row: Mapping[str, Any]) -> None:
        """Begin with a row; raises as ``step``."""
        self._row = row
        self._ask()

    def step(self, reply: str) -> Any:
        """Answer a reply.

        Raises:
            EnvironmentRaisedError: if the environment raises.
            TimeoutError: without an answer within the pool's limit.
            RuntimeError: if the process ends.
        """
        self._replies.append(reply)
        return self._ask()

    def _ask(self) -> Any:
        given = {
            "number": self._number,
            "path": self._path,
            "options": self._options,
            "row": dict(self._row),
            "replies": self._replies,
        }
        found = self._pool.call(self._number, ANSWER, given, loads=(self._path,))
        if isinstance(found, str):
            raise EnvironmentRaisedError(found)
        return found


def answer(
    number: int,
    path: str,
    options: Mapping[str, Any],
    row: Mapping[str, Any],
    replies: Sequence[str],
) -> Any:
    """Answer the last of the replies, in a process of the pool.

    Args:
        number: of the conversation.
        path: of the class.
        options: its keyword arguments.
        row: what it begins with.
        replies: all of the conversation so far; none to begin.

    Returns:
        Text, reward and whether it is over; None at the beginning; or a text, the error that the environment raised.
    """
    found, heard = None, len(replies)
    try:
        game, before = _KEPT.pop(number, (None, 0))
        if game is None or before != heard - 1:
            game = make_here(path, options)
            game.reset(row)
            for reply in replies[:-1]:
                game.step(reply)
        if replies:
            found = read_answer(game.step(replies[-1]))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's class raises
        return name_of(error)
    if found is None or not found[-1]:
        _KEPT[number] = game, heard
        if len(_KEPT) > MOST_KEPT:
            _KEPT.popitem(last=False)
    return found
