"""Run functions in another process, which always ends with this one.

It is a fresh interpreter and no fork: a fork copies locks that other threads hold. multiprocessing's spawn runs the parent's main
module again, which may be pytest, a notebook or a script without a guard.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, Literal, NamedTuple

from grpo_pipeline.runs.progress_words import Moment

MAIN = "grpo_pipeline.runs.worker_main"
GRACE_SECONDS = 5.0


class Message(NamedTuple):
    """A message of a worker.

    Attributes:
        kind: ``item``, a value of the called function; ``end``, after the last value; ``error`` of the function; ``log``, a
            record of a logger; ``moment``, the progress of a loop.
        value: value of that kind.
    """

    kind: Literal["item", "end", "error", "log", "moment"]
    value: Any = None


class WorkerDied(RuntimeError):  # noqa: N818 - it says what has happened
    """The process of a worker has ended before its work."""

    def __init__(self, status: int | None) -> None:
        how = (
            f"by signal {-status}" if status is not None and status < 0 else f"with status {status}"
        )
        super().__init__(f"its process ended {how}")


class UnsendableError(TypeError):
    """The arguments of a call cannot be copied into another process."""


class Worker:
    """A process that calls generator functions, one at a time.

    Attributes:
        process: the process.
        connection: the pipe to it, to wait for several workers at once.
    """

    def __init__(self, *, threads: int) -> None:
        """Start a process that computes with this number of threads."""
        self.connection, there = Pipe()
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", MAIN, str(there.fileno())],
                stdin=subprocess.PIPE,  # closed by this process's end, however it ends: the worker ends then, too
                stdout=sys.stderr.fileno() if _has_file(sys.stderr) else subprocess.DEVNULL,
                pass_fds=(there.fileno(),),
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends the others
            )
        send(self.connection, (threads, logging.getLogger("grpo_pipeline").getEffectiveLevel()))

    def ask(self, function: str, *arguments: Any) -> None:
        """Make the process call a generator function, ``module:name``; its values arrive one by one.

        Raises:
            UnsendableError: if the arguments cannot be copied.
        """
        try:
            message = Plain.dumps((function, arguments))
        except Exception as error:
            raise UnsendableError(f"it cannot be copied into another one ({error})") from error
        with suppress(BrokenPipeError):  # it has died: that is seen when its answer is read
            self.connection.send_bytes(message)

    def take(self) -> Message:
        """Wait for the next message; log records are logged here, and not returned.

        Raises:
            WorkerDied: if the process ended without another message.
        """
        while True:
            try:
                message: Message = receive(self.connection)
            except (EOFError, ConnectionResetError):
                self.close()
                raise WorkerDied(self.process.returncode) from None
            if message.kind != "log":
                return message
            logging.getLogger(message.value.name).handle(message.value)

    def results(
        self, function: str, *arguments: Any, watch: Callable[[Moment], None]
    ) -> Iterator[Any]:
        """Yield the values of a generator function in that process; ``watch`` gets its progress.

        Raises:
            WorkerDied: if the process has ended before.
            Exception: the function's own error.
        """
        self.ask(function, *arguments)
        while True:
            kind, value = self.take()
            if kind == "item":
                yield value
            elif kind == "moment":
                watch(value)
            elif kind == "error":
                raise value
            else:
                return

    def close(self) -> None:
        """End the process and all processes that it has started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_SECONDS)
        self.connection.close()
        if self.process.stdin is not None:
            self.process.stdin.close()


class Plain(ForkingPickler):
    """Pickles values as copies: torch would pass tensors as shared memory, which ends with the sender."""

    _extra_reducers: ClassVar[dict[Any, Any]] = {}


def send(connection: Connection, value: Any) -> None:
    """Write a value into a pipe between a run and its own processes; it is never stored."""
    connection.send_bytes(Plain.dumps(value))


def receive(connection: Connection) -> Any:
    """Read a value that ``send`` has written.

    Raises:
        EOFError: if the other end is closed.
    """
    return Plain.loads(connection.recv_bytes())


def _has_file(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except (AttributeError, OSError, ValueError):
        return False
