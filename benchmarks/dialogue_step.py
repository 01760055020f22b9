"""Measure what a GRPO step of the dialogue task costs, beside TRL's ``GRPOTrainer`` and beside a plain loop.

    python benchmarks/dialogue_step.py                (GPT-2, 4 layers of width 128; groups of 4, 8, 16, replies of 32, 64, 128)
    python benchmarks/dialogue_step.py --sizes one    (the first size alone)
    python benchmarks/dialogue_step.py --quick        (a model of width 16; seconds)

TRL is not among the project's own dependencies: ``pip install -c constraints.txt -e ".[oracles]"``. Without it ours is compared
with the plain loop alone, and the report says so.

All contenders have the same weights, prompts, reward, optimiser, clipping and number of threads, float32, one update epoch, and a
KL (k3) to a frozen copy of the start. The weights are such that the end is never drawn: every reply has all of its tokens, which
is checked. Before anything is measured, each contender computes the gradient of its loss on the same replies, with weights that
have moved since the draw; the distances are in the report.

`plain loop` repeats every prompt G times, writes with transformers' cache, and reads prompt and reply again for the old
log-probabilities, the reference's and the update. `TRL` reads every prompt G times, too; with one update epoch it needs no
old log-probabilities. `ours` is the project's step pipeline as training folds it, without the loss on reference replies, which
the others do not have; `ours, hybrid` is with it.

Steps take turns in one process, one of each contender per round. A ratio is taken within a round: its median, and its smallest
and largest. CPU seconds are beside the wall clock: on a machine that does other work they are the steadier ones. Memory is
measured in a process of its own for each contender: what its steps add to what was held before the first one, and the highest.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from dialogue_contenders import agreement, with_trl
from dialogue_contenders.report import format_report
from dialogue_contenders.turns import HYBRID, OURS, PLAIN, TRL, memory_of, take_turns
from dialogue_contenders.workload import Workload, write_start
from measuring import machine

from grpo_pipeline.pipelines.training.loop import quiet_nodes

CONTENDERS = (TRL, PLAIN, OURS, HYBRID)
QUICK = Workload(
    prompts=2, prompt_tokens=24, group_size=2, new_tokens=6, width=16, layers=2, heads=2
)
GROUPS, LENGTHS = (4, 8, 16), (32, 64, 128)


def sizes(first: Workload, which: str) -> list[Workload]:
    """Return the workloads to measure: the first one, and for ``all`` other group sizes and lengths, one at a time."""
    if which == "one":
        return [first]
    groups = [replace(first, group_size=g) for g in GROUPS if g != first.group_size]
    return [
        first,
        *groups,
        *(replace(first, new_tokens=n) for n in LENGTHS if n != first.new_tokens),
    ]


def measure(workload: Workload, *, rounds: int, threads: int, memory: bool) -> dict[str, Any]:
    """Measure one size, in processes of its own; JSON-able."""
    names = [name for name in CONTENDERS if name != TRL or with_trl.is_installed()]
    found = _ask({"task": "turns", "rounds": rounds}, workload, threads)
    if memory:
        found["memory"] = {
            name: _ask({"task": "memory", "name": name}, workload, threads) for name in names
        }
    return {"workload": asdict(workload), **found}


def answer(question: Mapping[str, Any], workload: Workload) -> dict[str, Any]:
    """Do what a child process was asked to."""
    with tempfile.TemporaryDirectory() as folder, quiet_nodes():
        write_start(workload, Path(folder))
        if question["task"] == "memory":
            return memory_of(question["name"], workload, folder)
        if question["task"] == "agreement":
            return agreement.distances(
                agreement.gradients(workload, folder, with_trl=with_trl.is_installed())
            )
        return take_turns(
            workload, folder, rounds=question["rounds"], with_trl=with_trl.is_installed()
        )


def _ask(question: Mapping[str, Any], workload: Workload, threads: int) -> dict[str, Any]:
    """Start this file anew, and read its answer from a file: libraries print what they like."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.json"
        child = {**question, "workload": asdict(workload), "threads": threads, "answer": str(path)}
        done = subprocess.run(
            [sys.executable, __file__, "--child", json.dumps(child)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                f"the measurement {dict(question)} must end well, got status {done.returncode}:\n{done.stderr}"
            )
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found


def _answer_parent(text: str) -> None:
    child = json.loads(text)
    torch.set_num_threads(child["threads"])
    Path(child["answer"]).write_text(
        json.dumps(answer(child, Workload(**child["workload"]))), encoding="utf-8"
    )


def check_tokens(found: Mapping[str, Any]) -> None:
    """Check that every step of every contender wrote all tokens.

    Raises:
        RuntimeError: if one did not: its times would be of less work.
    """
    work = Workload(**found["workload"])
    wanted = [work.samples * work.new_tokens]
    for name, counts in found["tokens"].items():
        if counts != wanted:
            raise RuntimeError(
                f"{name} must write {wanted[0]} tokens in every step, got {counts}; the end must not be drawn"
            )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def make_report(
    workloads: Sequence[Workload], *, rounds: int, threads: int, memory: bool
) -> dict[str, Any]:
    """Measure everything; JSON-able."""
    libraries = {name: _version(name) for name in ("torch", "transformers", "trl")}
    about = (
        machine.code(workloads[0].seed)
        | machine.hardware()
        | machine.load()
        | {"threads": threads}
        | libraries
    )
    distances = _ask({"task": "agreement"}, workloads[0], threads)
    found = []
    for workload in workloads:
        print(
            f"measuring groups of {workload.group_size}, replies of {workload.new_tokens} tokens",
            file=sys.stderr,
            flush=True,
        )
        found.append(measure(workload, rounds=rounds, threads=threads, memory=memory))
        check_tokens(found[-1])
    return {"machine": about, "agreement": distances, "sizes": found}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, help="prompts per step (default 4)")
    parser.add_argument("--prompt-tokens", type=int, help="length of every prompt (default 256)")
    parser.add_argument("--group-size", type=int, help="replies per prompt (default 8)")
    parser.add_argument("--new-tokens", type=int, help="tokens per reply (default 32)")
    parser.add_argument(
        "--sizes",
        choices=["one", "all"],
        default="all",
        help="one: without other group sizes and lengths",
    )
    parser.add_argument("--repeats", type=int, default=7, help="rounds (default 7)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--no-memory",
        action="store_true",
        help="leave the memory out, which needs a process per contender",
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model, one size, two rounds")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the tables")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child is not None:
        _answer_parent(args.child)
        return
    names = ("prompts", "prompt_tokens", "group_size", "new_tokens", "seed")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    workload = replace(QUICK if args.quick else Workload(), **given)
    workloads = sizes(workload, "one" if args.quick else args.sizes)
    rounds = 2 if args.quick else args.repeats
    report = make_report(workloads, rounds=rounds, threads=args.threads, memory=not args.no_memory)
    print(json.dumps(report, indent=2) if args.json else format_report(report))


if __name__ == "__main__":
    main()
