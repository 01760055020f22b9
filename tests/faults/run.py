"""Disturb runs in every way that has a name here, and count how they end.

    python tests/faults/run.py [--kills 100] [--bad-inputs 200] [--seed 0] [--only FAULT ...] [--tasks TASK ...] [--write]

Exit status: 0 all ended as they should, 1 one did not. ``--write`` puts the counts into docs/reliability.md.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import bad_inputs
import disturbed
from outcomes import BAD, GOOD, MEANING, Outcome, table
from projects import ROOT, TASKS, preload, start_fork, start_process

DOCUMENT = ROOT / "docs/reliability.md"
HOW = """An undisturbed run is made twice per task and seed; places of the comparison in which these two differ (ids, times)
are left out, and nothing else may differ. A run is killed at a moment drawn uniformly over the time of an undisturbed one, in
half of the cases together with the processes it started. Disks are file systems in memory, which takes an administrator's rights.
"""
FAULTS: dict[str, Callable[[disturbed.Bench], Iterator[Outcome]]] = {
    "kills": disturbed.killed_runs,
    "two": disturbed.two_at_once,
    "clock": disturbed.clock_in_the_future,
    "checkpoints": disturbed.edited_checkpoints,
    "full": disturbed.full_disk,
    "read-only": disturbed.read_only_disk,
    "server": disturbed.dead_server,
    "paused": disturbed.paused_workers,
    "parameters": bad_inputs.bad_parameters,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each outcome and the counts; return the exit status."""
    options = _parse(arguments)
    if options.fork:
        preload()
    begin, outcomes = time.monotonic(), list[Outcome]()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        start = start_fork if options.fork else start_process
        bench = disturbed.Bench(
            Path(folder), start, random.Random(options.seed), tuple(options.tasks), options.kills, options.bad_inputs
        )
        for name in options.only:
            for outcome in FAULTS[name](bench):
                outcomes.append(outcome)
                told = "" if outcome.is_good and outcome.verdict == "identical" else f": {outcome.detail}"
                print(f"{outcome.verdict:18} {outcome.fault} ({outcome.case}){told}", flush=True)
    minutes = (time.monotonic() - begin) / 60
    print(f"\n{table(outcomes)}\n\n{len(outcomes)} cases, {minutes:.0f} minutes, seed {options.seed}")
    if options.write:
        DOCUMENT.write_text(document(outcomes, options), encoding="utf-8")
    return int(any(not outcome.is_good for outcome in outcomes))


def document(outcomes: Sequence[Outcome], options: argparse.Namespace) -> str:
    """Return docs/reliability.md."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    meanings = "\n".join(f"- **{name}**: {MEANING[name]}." for name in (*GOOD, *BAD))
    wrong = [outcome for outcome in outcomes if not outcome.is_good]
    rest = "\n".join(f"- {outcome.fault}, {outcome.case}: {outcome.verdict}" for outcome in wrong) or "None."
    asked = f"--kills {options.kills} --bad-inputs {options.bad_inputs} --seed {options.seed}"
    return (
        "# Reliability\n\nWhat disturbed runs of the `smoke` environment end with. Written by "
        f"`make faults ARGS='{asked} --write'`, commit {commit}, tasks {', '.join(options.tasks)}.\n\n"
        f"{table(outcomes)}\n\n{meanings}\n\nCases that did not end as they should:\n\n{rest}\n\n{HOW}"
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Disturb runs in many ways, and count how they end.")
    parser.add_argument("--kills", type=int, default=100, help="runs that are killed and resumed (100)")
    parser.add_argument("--bad-inputs", type=int, default=200, help="wrong parameters (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and places (0)")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), help="faults to try; default: all")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="tasks to disturb; default: all")
    parser.add_argument("--no-fork", dest="fork", action="store_false", help="a new interpreter for each run; slower")
    parser.add_argument("--write", action="store_true", help=f"write the counts to {DOCUMENT.relative_to(ROOT)}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
