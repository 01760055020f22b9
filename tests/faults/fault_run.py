"""Disturb runs in every way that has a name here, and count how they end.

    python tests/faults/fault_run.py [--kills 100] [--bad-inputs 200] [--seed 0] [--only FAULT ...] [--tasks TASK ...] [--write]

Exit status: 0 all ended as they should, 1 one did not. ``--write`` puts the counts into docs/reliability.md.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import bad_inputs
import disturbed
from fault_outcomes import BAD, GOOD, MEANING, Outcome, count, table
from projects import ROOT, TASKS, preload, start_fork, start_process

DOCUMENT, RECORD = ROOT / "docs/reliability.md", ROOT / "docs/reliability.json"
HOW = """An undisturbed run is made twice per task and seed; places of the comparison in which these two differ (ids, times)
are left out, and nothing else may differ. A run is killed at a moment drawn uniformly over the time of an undisturbed one, in
half of the cases together with the processes it started; in half of the cases it trains its arms, or trials, in processes.
Disks are file systems in memory, which takes an administrator's rights.
"""
FAULTS: dict[str, Callable[[disturbed.Bench], Iterator[Outcome]]] = {
    "kills": disturbed.killed_runs,
    "grids": disturbed.killed_grids,
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
    commit = _commit()
    if options.write and commit.endswith("+"):
        raise SystemExit("error: counts are written of a commit, but files have changed since; commit them or leave out --write")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the projects are removed then, too
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
        DOCUMENT.write_text(document(remember(outcomes, options, commit)), encoding="utf-8")
    return int(any(not outcome.is_good for outcome in outcomes))


def _commit() -> str:
    """Return the commit that is disturbed, with a plus where files differ from it."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    changed = [*git, "status", "--porcelain", "--", "src", "conf", "tests/faults"]
    return commit + ("+" if subprocess.run(changed, capture_output=True, text=True, check=False).stdout.strip() else "")


def remember(outcomes: Sequence[Outcome], options: argparse.Namespace, commit: str) -> dict[str, Any]:
    """Put the counts of these faults beside those of others that were measured before, and return all."""
    found = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    if {"kills", "grids"} & {*options.only}:
        found.pop(disturbed.LEFT_BEHIND, None)  # counted where it is seen alone
    for fault, counts in count(outcomes).items():
        wrong = [f"{one.case}: {one.verdict}" for one in outcomes if one.fault == fault and not one.is_good]
        found[fault] = {
            "counts": dict(counts),
            "wrong": wrong,
            "commit": commit,
            "seed": options.seed,
            "tasks": list(options.tasks),
        }
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def document(found: Mapping[str, Any]) -> str:
    """Return docs/reliability.md."""
    verdicts = [*GOOD, *BAD]
    lines = [f"| fault | cases | {' | '.join(verdicts)} | commit, seed |", f"|---|{'---|' * (len(verdicts) + 2)}"]
    for fault, one in found.items():
        cells = " | ".join(str(one["counts"].get(verdict, 0)) for verdict in verdicts)
        lines.append(f"| {fault} | {sum(one['counts'].values())} | {cells} | {one['commit']}, {one['seed']} |")
    meanings = "\n".join(f"- **{name}**: {MEANING[name]}." for name in verdicts)
    rest = "\n".join(f"- {fault}, {case}" for fault, one in found.items() for case in one["wrong"]) or "None."
    return (
        "# Reliability\n\nHow disturbed runs of the `smoke` environment end, over all three tasks. Written by "
        "`make faults ARGS=--write`, which takes an hour or so on one core; `--only` measures some of the faults anew.\n\n"
        + "\n".join(lines)
        + f"\n\n{meanings}\n\nCases that did not end as they should:\n\n{rest}\n\n{HOW}"
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Disturb runs in many ways, and count how they end.")
    killed = "runs that are killed and resumed (100); a fifth as many comparisons"
    parser.add_argument("--kills", type=int, default=100, help=killed)
    parser.add_argument("--bad-inputs", type=int, default=200, help="wrong parameters (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and places (0)")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), help="faults to try; default: all")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="tasks to disturb; default: all")
    parser.add_argument("--no-fork", dest="fork", action="store_false", help="a new interpreter for each run; slower")
    parser.add_argument("--write", action="store_true", help=f"write the counts to {DOCUMENT.relative_to(ROOT)}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
