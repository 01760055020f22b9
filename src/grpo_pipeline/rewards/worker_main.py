"""Main program of a reward process: ``python -m grpo_pipeline.rewards.worker_main``, started by ``process.py``.

One JSON object per line comes in on the standard input, one goes out on what was the standard output. It ends with its
input, so that it never outlives its parent.
"""

import faulthandler
import json
import os
import sys
from typing import IO, Any

from grpo_pipeline.rewards.functions import load_function, measure_chunk, prepare


def main() -> None:
    """Answer requests until the input ends."""
    requests, answers = take_over_pipes()
    with open(os.devnull, "w") as nowhere:
        for line in requests:
            request = json.loads(line)
            # A parent that was killed cannot end a call that hangs, and a call that hangs reads no end of input.
            faulthandler.dump_traceback_later(request["seconds"] + 5, exit=True, file=nowhere)
            answer = load(request) if "load" in request else measure(request)
            faulthandler.cancel_dump_traceback_later()
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()


def take_over_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Keep both pipes for the protocol: what a reward prints goes to the standard error, which the parent reads."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(sys.stderr.fileno(), 1)
    return requests, answers


def load(request: dict[str, Any]) -> dict[str, str]:
    """Import a function, and what it needs, ahead of its first chunk, whose time limit is not meant for imports."""
    try:
        prepare(request["load"])
    except ValueError as error:
        return {"error": str(error)}
    return {}


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Measure one chunk."""
    function = load_function(request["function"])
    return {
        "outcomes": measure_chunk(
            function, request["options"], request["subjects"], request["references"]
        )
    }


if __name__ == "__main__":
    main()
