"""Measure how much sooner a comparison is there when its trials run in several processes: whole commands, side by side.

    python benchmarks/trials_at_once.py [--task molecules] [--workers 2] [--repeats 2] [--params key=value,…] [--smoke]

The same command with one worker and with several takes turns, each time in a folder of its own that is removed; so data stage,
tables and page count, as they do for a user. A figure is the median over rounds of the ratio within a round.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIPELINES = {"attention": "compare"}


def seconds(task: str, workers: int, *, env: str, params: str) -> float:
    """Return how long the comparison takes, started from nothing."""
    folder = f"{task}_trials_{os.getpid()}_{workers}"
    given = [
        f"{task}_folder={folder}",
        f"{task}.compare.workers={workers}",
        *filter(None, [params]),
    ]
    command = [
        sys.executable,
        "-m",
        "kedro",
        "run",
        "--pipelines",
        PIPELINES.get(task, f"{task}_compare"),
    ]
    command += ["--params", ",".join(given), *(["--env", env] if env else [])]
    environ = os.environ | {"GRPO_PROGRESS": "off"}
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )
    finally:
        for layer in (ROOT / "data").glob("0*"):
            shutil.rmtree(layer / folder, ignore_errors=True)
    if done.returncode:
        raise SystemExit(
            f"error: the comparison must end well, got {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return time.perf_counter() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both times of each round and the ratio; return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument(
        "--task", default="molecules", choices=("attention", "dialogue", "molecules")
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--params", default="", help="as of kedro run, for shorter trials")
    parser.add_argument(
        "--smoke", action="store_true", help="sizes of conf/smoke: starting a process is most of it"
    )
    given = parser.parse_args(arguments)
    env, ratios = "smoke" if given.smoke else "", []
    for number in range(given.repeats):
        turns = [1, given.workers] if number % 2 == 0 else [given.workers, 1]
        took = {
            workers: seconds(given.task, workers, env=env, params=given.params) for workers in turns
        }
        ratios.append(took[1] / took[given.workers])
        print(
            f"one by one {took[1]:.0f} s, {given.workers} at once {took[given.workers]:.0f} s, ratio {ratios[-1]:.2f}",
            flush=True,
        )
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    times = f"{statistics.median(ratios):.2f} times as fast ({spread})"
    print(f"{given.task}, {given.workers} workers: {times}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
