"""A process that trains trials for another one (``executor.Lane``): reads them from a pipe, writes back how they ended."""

import os
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from grpo_pipeline.runs.machine import compute_in


def serve(connection: Connection) -> None:
    """Train what arrives until the other end is closed."""
    task, threads = connection.recv()
    compute_in(threads)  # before torch is imported
    from grpo_pipeline.pipelines.experiments.trials.executor import Place, receive, send, train
    from grpo_pipeline.pipelines.experiments.trials.setups import find_setup

    place = Place(find_setup(task), *receive(connection))
    memory: Mapping[str, Any] = {}
    while True:
        try:
            job = receive(connection)
        except EOFError:
            return
        outcome, memory = train(job, place, memory)
        send(connection, outcome)


def end_with_parent() -> None:
    """End this process when the standard input is closed, as it is when the other process has ended, however it did."""
    os.read(sys.stdin.fileno(), 1)  # not the buffer, which Python would wait for at its end
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    serve(Connection(int(sys.argv[1])))
