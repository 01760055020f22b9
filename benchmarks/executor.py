"""Measure how much sooner a run is done when its trainings share the cores: whole commands, side by side.

    python benchmarks/executor.py [--pipeline attention] [--rounds 1] [--env ENV] [--params key=value,…]

The same command with `executor.kind=serial` and with `processes` takes turns, each in a data folder of its own; so the data
stage, tables and page count, as they do for a user. A figure is the median over rounds of the ratio within a round.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("serial", "processes")


def seconds(pipeline: str, kind: str, *, env: str, params: str) -> float:
    """Return how long a run takes, started from nothing."""
    with tempfile.TemporaryDirectory() as folder:
        given = [f"executor.kind={kind}", f"data={folder}/data", *filter(None, [params])]
        command = [sys.executable, "-m", "kedro", "run", "--pipelines", pipeline]
        command += ["--params", ",".join(given), *(["--env", env] if env else [])]
        environ = os.environ | {
            "GRPO_PROGRESS": "off",
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/runs.db",
        }
        begin = time.perf_counter()
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )
        took = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(
            f"error: the run must end well, got {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return took


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both times of each round and the ratio; return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--pipeline", default="attention", help="as of kedro run")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--env", default="", help="as of kedro run")
    parser.add_argument("--params", default="", help="as of kedro run, for shorter trainings")
    given = parser.parse_args(arguments)
    ratios = []
    for number in range(given.rounds):
        turns = KINDS if number % 2 == 0 else KINDS[::-1]
        took = {
            kind: seconds(given.pipeline, kind, env=given.env, params=given.params)
            for kind in turns
        }
        ratios.append(took["serial"] / took["processes"])
        print(
            f"{given.pipeline}: serial {took['serial']:.0f} s, processes {took['processes']:.0f} s, ratio {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"{given.pipeline}: {statistics.median(ratios):.2f} times as fast, {len(ratios)} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
