"""Control a reward process from its parent: start it, send it samples with a time limit, and end it.

multiprocessing is not used. Its spawn runs the parent's main module again, which may be a command line tool, pytest or a
notebook. Its messages are pickles. This process is a fresh interpreter, too, but speaks JSON.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Any

from grpo_pipeline.rewards.reward_prints import RewardPrints
from grpo_pipeline.runs.threads import VARIABLES

ONE_THREAD = dict.fromkeys(VARIABLES, "1")

CHUNK_BYTES = 65536

LISTEN_SECONDS = 5.0


class WorkerHungError(Exception):
    """No answer within the time limit."""


class WorkerDiedError(Exception):
    """The process ended before it answered."""


class WorkerProcess:
    """A reward process. A single thread asks it; any thread may ``kill`` it, and the asking thread then gets WorkerDiedError."""

    def __init__(self, prints: RewardPrints | None = None) -> None:
        """Start the process, with the parent's import path and a single thread, in a process group of its own.

        Args:
            prints: passes on the process's prints; a new one if not given.
        """
        self._lock = threading.Lock()
        self._loaded: set[str] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "grpo_pipeline.rewards.worker_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=os.environ
            | ONE_THREAD
            | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._requests.fileno(), False)
        printed = (self._process.stderr, prints or RewardPrints())
        self._listener = threading.Thread(
            target=_listen, args=printed, name="reward prints", daemon=True
        )
        self._listener.start()

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    def load(self, function: str, *, seconds: float) -> str | None:
        """Import a function in the process, once; returns the reason of a failure, or None.

        Raises:
            WorkerHungError, WorkerDiedError: as ``ask``.
        """
        if function in self._loaded:
            return None
        error = self.ask({"load": function}, seconds=seconds).get("error")
        self._loaded |= set() if error else {function}
        return None if error is None else str(error)

    def ask(self, request: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            WorkerHungError: without an answer after so many seconds.
            WorkerDiedError: if the process ended; the sentence says how.
        """
        deadline = time.monotonic() + seconds
        try:
            rest = memoryview(json.dumps(request | {"seconds": seconds}).encode() + b"\n")
            while rest:
                _wait(self._requests, selectors.EVENT_WRITE, deadline)
                rest = rest[os.write(self._requests.fileno(), rest[:CHUNK_BYTES]) :]
            answer: dict[str, Any] = json.loads(self._receive(deadline))
        except BrokenPipeError:
            self.kill()
            code = self._process.wait()
            raise WorkerDiedError(
                f"signal {-code}" if code < 0 else f"exit status {code}"
            ) from None
        return answer

    def kill(self) -> None:
        """Kill the process and all processes that it started, and return at once."""
        with self._lock:
            # Its id can belong to another process only after ``wait`` has set the return code.
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process, wait until it is gone, and close its pipes; called by the asking thread."""
        self.kill()
        with self._lock:
            self._process.wait()
        self._requests.close()
        self._answers.close()
        # A process that it started outside of its group may keep the pipe open for ever.
        self._listener.join(timeout=LISTEN_SECONDS)

    def _receive(self, deadline: float) -> bytes:
        received = bytearray()
        while not received.endswith(b"\n"):
            _wait(self._answers, selectors.EVENT_READ, deadline)
            part = os.read(self._answers.fileno(), CHUNK_BYTES)
            if not part:
                raise BrokenPipeError
            received += part
        return bytes(received)


def _listen(printed: IO[bytes], prints: RewardPrints) -> None:
    """Read the prints of a process until its pipe is closed."""
    with printed:
        while part := os.read(printed.fileno(), CHUNK_BYTES):
            prints.pass_on(part)


def _wait(file: IO[bytes], event: int, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(file, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise WorkerHungError
