"""Run the process of a ``Worker``: call functions on request, and send the values that they yield."""

import logging
import os
import signal
import sys
import threading
import traceback
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from pkgutil import resolve_name
from typing import Any

from grpo_pipeline.runs.freed_memory import keep_freed_memory
from grpo_pipeline.runs.threads import compute_in


def serve(connection: Connection) -> None:
    """Answer requests until the other end is closed."""
    from grpo_pipeline.runs.progress_listeners import tell_to
    from grpo_pipeline.runs.worker import Message, Plain, receive, send

    threads, level = receive(connection)
    keep_freed_memory()
    compute_in(threads)  # before torch is imported
    writing = threading.Lock()

    def tell(kind: Any, value: Any = None) -> None:
        with writing:
            send(connection, Message(kind, value))

    class Told(QueueHandler):
        def enqueue(self, record: logging.LogRecord) -> None:
            tell("log", record)

    told = Told(None)  # type: ignore[arg-type]  # no queue, but a pipe
    told.setFormatter(logging.Formatter())  # the message alone: the other process writes the line
    logging.basicConfig(level=level, handlers=[told])
    tell_to(lambda moment: tell("moment", moment))
    while True:
        try:
            asked = connection.recv_bytes()
        except EOFError:
            return
        try:
            function, arguments = Plain.loads(asked)
            for value in resolve_name(function)(*arguments):
                tell("item", value)
        except Exception as error:  # noqa: BLE001 - whoever waits for the values must hear of it
            error.add_note("".join(traceback.format_exception(error)))
            tell("error", _sendable(error, Plain))
        else:
            tell("end")


def _sendable(error: Exception, pickler: Any) -> Exception:
    """Prepare an error for sending: one that cannot be rebuilt from its message becomes a RuntimeError with its text."""
    try:
        pickler.loads(pickler.dumps(error))
    except Exception:  # noqa: BLE001 - of any class, by anybody
        other = RuntimeError(f"{type(error).__name__}: {error}")
        other.__notes__ = error.__notes__
        return other
    return error


def end_with_parent() -> None:
    """End this process when the standard input closes, which the end of the other process causes."""
    os.read(sys.stdin.fileno(), 1)  # not the buffer, which Python would wait for at its end
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    serve(Connection(int(sys.argv[1])))
