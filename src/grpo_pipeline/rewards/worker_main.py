"""Run a reward process: ``python -m grpo_pipeline.rewards.worker_main``, started by ``process.py``.

It reads a JSON object per line from the standard input, and writes one per line to its original standard output. It ends with its
input, so that it never outlives its parent.
"""

import faulthandler
import json
import os
import sys
from typing import IO, Any

from grpo_pipeline.rewards.functions import load_function, prepare
from grpo_pipeline.rewards.measuring import measure_chunk


def main() -> None:
    """Answer requests until the input ends."""
    requests, answers = take_over_pipes()
    with open(os.devnull, "w") as nowhere:
        for line in requests:
            request = json.loads(line)
            # A killed parent cannot end a hanging call, and a hanging call does not read the end of the input.
            faulthandler.dump_traceback_later(request["seconds"] + 5, exit=True, file=nowhere)
            answer = ANSWERS[next(name for name in ANSWERS if name in request)](request)
            faulthandler.cancel_dump_traceback_later()
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()


def take_over_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Keep both pipes for the protocol: prints of a reward go to the standard error, which the parent reads."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(sys.stderr.fileno(), 1)
    return requests, answers


def load(request: dict[str, Any]) -> dict[str, str]:
    """Import a function and run its preparation, outside of the time limit of its first chunk."""
    try:
        prepare(request["load"])
    except ValueError as error:
        return {"error": str(error)}
    return {}


def call(request: dict[str, Any]) -> dict[str, Any]:
    """Call a function by its path, which may keep what it needs for the next call."""
    return {"returned": load_function(request["call"])(**request["given"])}


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Measure a chunk."""
    function = load_function(request["function"])
    return {
        "outcomes": measure_chunk(
            function, request["options"], request["subjects"], request["references"]
        )
    }


ANSWERS = {"load": load, "call": call, "function": measure}
"""Key of a request -> what answers it."""

if __name__ == "__main__":
    main()
