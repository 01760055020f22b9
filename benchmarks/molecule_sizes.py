"""Measure what groups of similar size save where molecules differ in size.

    python benchmarks/molecule_sizes.py                    (sizes as among drug-like molecules; three minutes or so on one core)
    python benchmarks/molecule_sizes.py --network layers=4 (another network than that of conf/base)
    python benchmarks/molecule_sizes.py --quick            (a tiny network; seconds; its figures mean nothing)

Sizes are drawn from a normal distribution and rounded. `whole` computes every graph as wide as the largest that the vocabulary
has room for; `groups` is what the task does. Both take turns in one process, and the order turns from round to round; a ratio is
of CPU seconds within a round, its median with the smallest and the largest. Before anything is timed, both score the same
trajectories; a distance above 1e-3 nats ends the benchmark.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from measuring import machine
from measuring.spread import ratio
from molecule_contenders.turns import take_turns
from molecule_contenders.workload import TINY, configured_network, read_size
from torch import Tensor

from grpo_pipeline.runs.freed_memory import keep_freed_memory
from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy, build_policy
from grpo_pipeline.tasks.molecules.diffusion import size_groups
from grpo_pipeline.tasks.molecules.diffusion.params import (
    DenoiserParams,
    NoiseParams,
    TrajectoryParams,
)
from grpo_pipeline.tasks.molecules.diffusion.step_scores import score_steps
from grpo_pipeline.tasks.molecules.diffusion.trajectories import choose_decisions
from grpo_pipeline.tasks.molecules.diffusion.trajectory_sampling import sample_trajectories
from grpo_pipeline.tasks.molecules.diffusion.transition import uniform_limit
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts, make_prompts

CLASSES = Components(9, 3, 4)
NOISE = NoiseParams(
    steps=50, limit="uniform", exponents={"atoms": 1.0, "charges": 1.0, "bonds": 1.5}
)
TRAJECTORY = TrajectoryParams(
    start="independent",
    entry_reduction="sum",
    estimator="step",
    steps_per_update=10,
    steps_per_chunk=10,
)
NEVER = 2**62
SAMPLE, UPDATE = "sampling", "update"
Step = Callable[[], Tensor]


def draw_sizes(args: argparse.Namespace) -> GraphPrompts:
    """Return prompts with normal sizes between 1 and the largest."""
    drawn = (
        torch.randn(args.prompts, generator=torch.Generator().manual_seed(args.seed)) * args.spread
        + args.mean
    )
    return make_prompts(drawn.round().clamp(1, args.largest).long(), args.largest)


@contextmanager
def cutting(cost: int) -> Iterator[None]:
    """Cut as if a group cost this much."""
    before = size_groups.CUT_COSTS["cpu"]
    size_groups.CUT_COSTS["cpu"] = cost
    try:
        yield
    finally:
        size_groups.CUT_COSTS["cpu"] = before


def make_steps(
    policy: GraphPolicy, prompts: GraphPrompts, args: argparse.Namespace
) -> dict[str, tuple[Step, int]]:
    """Return both contenders of both halves, with the number of graphs of one call.

    Raises:
        RuntimeError: if they do not give the same log-probabilities.
    """
    draw = partial(
        sample_trajectories, policy, prompts, args.group_size, params=TRAJECTORY, temperature=1.0
    )
    whole = draw(generator=torch.Generator().manual_seed(args.seed))
    kept = choose_decisions(
        whole, TRAJECTORY.steps_per_update or 1, generator=torch.Generator().manual_seed(args.seed)
    )

    def sample() -> Tensor:
        return draw(generator=torch.Generator().manual_seed(args.seed)).logprobs

    def update() -> Tensor:
        policy.zero_grad()
        logprobs = score_steps(policy, kept, params=TRAJECTORY, temperature=1.0).logprobs
        torch.autograd.backward(logprobs.sum())
        return logprobs.detach()

    def as_groups(step: Step, cost: int) -> Tensor:
        with cutting(cost):
            return step()

    usual = size_groups.CUT_COSTS["cpu"]
    distance = float((as_groups(update, NEVER) - as_groups(update, usual)).abs().max())
    if not distance < 1e-3:
        raise RuntimeError(
            f"groups must give the log-probabilities of whole batches within 1e-3, got {distance:.2g} between them"
        )
    graphs = args.prompts * args.group_size
    costs = {"whole": NEVER, "groups": usual}
    steps = {SAMPLE: sample, UPDATE: update}
    return {
        f"{half}, {name}": (partial(as_groups, steps[half], cost), graphs)
        for half in steps
        for name, cost in costs.items()
    }


def make_report(args: argparse.Namespace) -> dict[str, Any]:
    """Measure both halves; JSON-able."""
    keep_freed_memory()
    about = (
        machine.code(args.seed)
        | machine.hardware()
        | machine.load()
        | machine.library(args.threads)
    )
    prompts = draw_sizes(args)
    policy = build_policy(
        CLASSES.each(uniform_limit), NOISE, DenoiserParams(**args.sizes_of_network), seed=args.seed
    )
    found = take_turns(make_steps(policy, prompts, args), args.repeats)
    cpu = {name: [turn.cpu for turn in turns] for name, turns in found.items()}
    groups = size_groups.size_groups(prompts, args.group_size)
    return {
        "machine": about,
        "network": args.sizes_of_network,
        "sizes": sorted(prompts.sizes.tolist()),
        "groups": [{"nodes": group.nodes, "prompts": len(group.rows)} for group in groups],
        "cpu_seconds_per_graph": cpu,
        "whole_to_groups": {
            half: vars(ratio(cpu[f"{half}, whole"], cpu[f"{half}, groups"]))
            for half in (SAMPLE, UPDATE)
        },
    }


def format_report(report: dict[str, Any]) -> str:
    """Return the report as text."""
    groups = ", ".join(
        f"{group['prompts']} of up to {group['nodes']} atoms" for group in report["groups"]
    )
    lines = [
        ", ".join(f"{name} {value}" for name, value in report["machine"].items()),
        ", ".join(f"{name} {value}" for name, value in report["network"].items()),
        f"sizes {' '.join(str(size) for size in report['sizes'])}; groups when drawing: {groups}",
    ]
    for half, spread in report["whole_to_groups"].items():
        lines.append(
            f"{half}: whole / groups {spread['median']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mean", type=float, default=23.0, help="of the sizes, atoms (default 23)")
    parser.add_argument(
        "--spread", type=float, default=4.5, help="their standard deviation (default 4.5)"
    )
    parser.add_argument(
        "--largest", type=int, default=38, help="atoms that there is room for (default 38)"
    )
    parser.add_argument("--prompts", type=int, default=8, help="of a batch (default 8)")
    parser.add_argument("--group-size", type=int, default=12, help="graphs of each (default 12)")
    parser.add_argument(
        "--network",
        type=read_size,
        nargs="+",
        metavar="NAME=SIZE",
        help="other sizes than those of conf/base",
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default 3)")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of torch (default 1: more only on idle cores)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--quick", action="store_true", help="a tiny network, few graphs, one round"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the text")
    args = parser.parse_args(argv)
    args.sizes_of_network = (TINY if args.quick else configured_network()) | dict(
        args.network or ()
    )
    if args.quick:
        args.group_size, args.repeats = 4, 1
    torch.set_num_threads(args.threads)
    report = make_report(args)
    print(json.dumps(report, indent=2) if args.json else format_report(report))


if __name__ == "__main__":
    main()
