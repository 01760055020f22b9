"""Measure what it costs to draw molecules by diffusion and to score their trajectories, beside a plain loop.

    python benchmarks/molecules.py                             (T = 50, 200, 500 and n = 9, 20, 38; half an hour on one core)
    python benchmarks/molecules.py --steps 50 --nodes 9 20     (some cells; minutes)
    python benchmarks/molecules.py --network width=64 pair_width=32    (another network than that of conf/base)
    python benchmarks/molecules.py --quick                     (a tiny network; seconds; its figures mean nothing)

`sampling` draws trajectories of T steps, every graph and log-probability kept. `update` scores all T steps of stored trajectories
and adds the gradient of - A log p: with `score_steps`, which computes each chunk of steps again in the backward pass, and `by
chunks`, with one backward after each chunk and no second forward.

The `plain` loop has the same network and weights. It takes one graph after the other and one step after the other, reads the
posterior off dense matrices Q_t, draws with `torch.multinomial`, and keeps the graph of computation of a whole trajectory. It
is measured on fewer graphs than ours, which changes nothing for it: its time per graph is that of one. Nothing is extrapolated.
Before anything is timed, both compute log-probabilities and gradient of the same trajectories; a distance above 1e-4 ends the
benchmark.

Freed memory is kept as in a run, for both; not where memory is measured.

Contenders take turns in one process, and the order turns from round to round. A ratio is of CPU seconds per molecule within a
round, its median with the smallest and the largest: on a machine that does other work they are steadier than the clock. Growth
is the exponent of a power law through the medians. Memory is measured in a process of its own for each contender and T: what a
second update adds at its peak. The share of matrix products is of the profiler's time, and of CPU time without a
profiler, the products of one call computed again by themselves.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from measuring import machine
from measuring.memory import added_mb
from molecule_contenders import agreement
from molecule_contenders.products import median_share
from molecule_contenders.report import format_report
from molecule_contenders.turns import (
    SAMPLE,
    UPDATE,
    UPDATE_BY_CHUNKS,
    UPDATE_PLAIN,
    make_steps,
    take_turns,
)
from molecule_contenders.workload import TINY, Workload, configured_network, read_size

from grpo_pipeline.runs.freed_memory import keep_freed_memory

STEPS, NODES = (50, 200, 500), (9, 20, 38)
# Graphs of ours by n: about as many pairs of nodes at a time in every cell.
GRAPHS = {9: 64, 20: 16, 38: 4}
MEMORY = Workload(nodes=9, steps=50, graphs=16)
SHARES = Workload(nodes=9, steps=10, graphs=144)
AGREEMENT = Workload(nodes=6, steps=8, graphs=3, steps_per_chunk=3)


def measure_cell(work: Workload, rounds: int) -> dict[str, Any]:
    """Time all contenders; JSON-able."""
    steps = make_steps(work)
    take_turns(
        make_steps(replace(work, steps=2, graphs=2)), rounds=1
    )  # what only the first call of a process pays
    found = take_turns(steps, rounds)
    return {
        **{name: getattr(work, name) for name in ("nodes", "steps", "graphs", "plain_graphs")},
        "wall": {name: [turn.wall for turn in turns] for name, turns in found.items()},
        "cpu": {name: [turn.cpu for turn in turns] for name, turns in found.items()},
    }


def measure_memory(first: Workload, times: Sequence[int], threads: int) -> list[dict[str, Any]]:
    """Return what an update adds, by contender and T, each in a process of its own; nothing where it cannot be measured."""
    names = (UPDATE, UPDATE_BY_CHUNKS, UPDATE_PLAIN)
    rows = []
    for work, name in ((replace(first, steps=t), name) for t in times for name in names):
        added = _ask({"name": name, "workload": asdict(work), "threads": threads})
        if added is None:
            return []
        rows.append(
            {
                "name": name,
                "nodes": work.nodes,
                "graphs": work.graphs,
                "steps": work.steps,
                "added": added,
            }
        )
    return rows


def measure_shares(work: Workload, rounds: int) -> dict[str, Any]:
    """Return the share of the matrix products in sampling and update."""
    steps = make_steps(work)
    found = {
        name: median_share(steps[name][0], rounds) for name in (SAMPLE, UPDATE, UPDATE_BY_CHUNKS)
    }
    return {"workload": asdict(work), "found": found}


def answer(question: Mapping[str, Any]) -> float | None:
    """Do what a child process was asked to: MiB, or None where the system cannot tell."""
    step, _ = make_steps(Workload(**question["workload"]))[question["name"]]
    try:
        return added_mb(step)
    except OSError:
        return None


def _ask(question: Mapping[str, Any]) -> float | None:
    """Start this file anew, and read its answer from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.json"
        child = [sys.executable, __file__, "--child", json.dumps({**question, "answer": str(path)})]
        done = subprocess.run(child, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(
                f"the measurement {dict(question)} must end well, got status {done.returncode}:\n{done.stderr}"
            )
        found: float | None = json.loads(path.read_text(encoding="utf-8"))
        return found


def _answer_parent(text: str) -> None:
    child = json.loads(text)
    torch.set_num_threads(child["threads"])
    Path(child["answer"]).write_text(json.dumps(answer(child)), encoding="utf-8")


def make_report(args: argparse.Namespace) -> dict[str, Any]:
    """Measure everything; JSON-able."""
    keep_freed_memory()
    about = (
        machine.code(args.seed)
        | machine.hardware()
        | machine.load()
        | machine.library(args.threads)
    )
    network = configured_network() | dict(args.network or ())
    if args.quick:
        network = TINY
    given = {"network": network, "seed": args.seed}
    found = agreement.distances(replace(AGREEMENT, **given))
    agreement.check(found)
    cells = []
    for work in cells_of(args):
        print(f"measuring n = {work.nodes}, T = {work.steps}", file=sys.stderr, flush=True)
        cells.append(measure_cell(replace(work, **given), args.repeats))
    print("measuring memory and matrix products", file=sys.stderr, flush=True)
    first, shares = (replace(work, **given) for work in (MEMORY, SHARES))
    if args.quick:
        first, shares = replace(first, nodes=4, graphs=2), replace(shares, graphs=4, steps=3)
    memory = [] if args.no_memory else measure_memory(first, sorted(args.steps), args.threads)
    shown = measure_shares(shares, args.repeats)
    return {
        "machine": about,
        "network": network,
        "agreement": found,
        "cells": cells,
        "memory": memory,
        "shares": shown,
    }


def cells_of(args: argparse.Namespace) -> list[Workload]:
    """Return what is timed: every n with every T."""
    graphs = (
        dict.fromkeys(args.nodes, 4)
        | ({} if args.quick else GRAPHS)
        | (dict.fromkeys(args.nodes, args.graphs) if args.graphs else {})
    )
    return [Workload(nodes=n, steps=t, graphs=graphs[n]) for n in args.nodes for t in args.steps]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+", help="T (default 50 200 500)")
    parser.add_argument("--nodes", type=int, nargs="+", help="n (default 9 20 38)")
    parser.add_argument(
        "--network",
        type=read_size,
        nargs="+",
        metavar="NAME=SIZE",
        help="other sizes than those of conf/base",
    )
    parser.add_argument(
        "--graphs", type=int, help="graphs of ours at a time (default by n: 64, 16, 4)"
    )
    parser.add_argument("--repeats", type=int, help="rounds (default 3)")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of torch (default 1: more only on idle cores)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--no-memory",
        action="store_true",
        help="leave the memory out, which needs a process per contender and T",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tiny network, tiny sizes, one round"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the tables")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child is not None:
        _answer_parent(args.child)
        return
    args.steps = args.steps or ((2, 4) if args.quick else STEPS)
    args.nodes = args.nodes or ((3, 5) if args.quick else NODES)
    args.repeats = args.repeats or (1 if args.quick else 3)
    torch.set_num_threads(args.threads)
    report = make_report(args)
    print(json.dumps(report, indent=2) if args.json else format_report(report))


if __name__ == "__main__":
    main()
