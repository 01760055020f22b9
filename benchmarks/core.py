"""Measure what the functions of core/ cost beside other implementations: ratios of steps that are measured side by side.

    python benchmarks/core.py            (a minute or two)
    python benchmarks/core.py --smoke    (small sizes; seconds; its figures mean nothing)

The steps of a section take turns and the order turns with each round, so that a machine that slows down slows all of them. A
figure is the median over rounds of the ratio within a round, with the smallest and the largest. Steps of microseconds are
repeated within their turn.

`GAE` beside torchrl's convolution and a plain loop over time, batch of 64, no episode ends (where they do, torchrl cuts and pads,
and is several times slower); growth is the time at the longest length over the time at a middle one, divided by the ratio of
the lengths: 1 is linear. `policy loss` forward and backward, dapo on [64, 512], beside TRL's method, which also
computes its metrics, and beside a loop over rows. `chunked_logprobs` forward and backward with entropies beside log-softmax over
all logits; memory is what a step adds at its peak to what the process held before. `Plackett-Luce`: draw and score k points
without replacement, forward and backward, beside a loop over samples and points.
Rows that need torchrl or TRL say so where these are not installed.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import torch.nn.functional as F
from measuring import machine
from measuring.memory import added_mb
from measuring.spread import Spread, ratio
from torch import Tensor

from grpo_pipeline.core.objective.surrogates.clipped import Dapo
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.policy_gradient.returns import generalized_advantages
from grpo_pipeline.core.sampling.linear_logprobs import chunked_logprobs
from grpo_pipeline.core.sampling.plackett_luce import gumbel_top_k, plackett_luce_logprobs

ROOT = Path(__file__).resolve().parents[1]
GAMMA, GAE_LAMBDA, CLIP_LOW, CLIP_HIGH = 0.99, 0.95, 0.2, 0.28
# A turn takes at least this long: shorter ones measure the clock and the machine's interruptions.
TURN_SECONDS = 0.02
PAGE_MB = 4 / 2**10
Step = Callable[[], Any]


@dataclass(frozen=True)
class Sizes:
    """Sizes: length of GAE, [P, G, L] of the loss, [rows, width, choices] of the head, [P, G, k, side] of points."""

    lengths: tuple[int, ...]
    loss: tuple[int, int, int]
    head: tuple[int, int, int]
    points: tuple[int, int, int, int]


FULL = Sizes(
    lengths=(128, 512, 1024, 4096),
    loss=(8, 8, 512),
    head=(2048, 256, 32_768),
    points=(16, 8, 8, 64),
)
SMOKE = Sizes(lengths=(16, 32), loss=(2, 2, 8), head=(32, 8, 512), points=(2, 2, 3, 8))


@dataclass(frozen=True)
class Figure:
    """A ratio of two steps, with what is wanted of it; ``scale`` divides it."""

    name: str
    above: str
    below: str
    sign: str = ""
    limit: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True)
class Section:
    """Steps that take turns, figures made of their seconds and of their peak memory, and why some rows are missing."""

    steps: Mapping[str, Step]
    figures: Sequence[Figure]
    skipped: Mapping[str, str] = field(default_factory=dict)
    memory: Sequence[Figure] = ()


def is_installed(library: str) -> bool:
    """Say whether a library could be imported, without importing it."""
    return importlib.util.find_spec(library) is not None


def gae_section(sizes: Sizes, seed: int) -> Section:
    """Compare estimates of advantages for each length, forward only, as they are used."""
    steps: dict[str, Step] = {}
    figures, skipped = [], {}
    for length in sizes.lengths:
        generator = torch.Generator().manual_seed(seed)
        rewards, values = (torch.randn(64, n, generator=generator) for n in (length, length + 1))
        dones = torch.zeros(64, length, dtype=torch.bool)
        steps |= {
            f"GAE T={length} {name}": step
            for name, step in gae_steps(rewards, values, dones).items()
        }
        figures.append(
            Figure(
                f"GAE T={length}: loop / ours",
                f"GAE T={length} loop",
                f"GAE T={length} ours",
                ">=",
                1.0,
            )
        )
        name = f"GAE T={length}: torchrl / ours"
        if is_installed("torchrl"):
            figures.append(
                Figure(name, f"GAE T={length} torchrl", f"GAE T={length} ours", ">=", 1.0)
            )
        else:
            skipped[name] = "torchrl is not installed"
    middle, longest = sizes.lengths[len(sizes.lengths) // 2 - 1], sizes.lengths[-1]
    growth = f"GAE growth per step, T={middle} to {longest}"
    figures.append(
        Figure(
            growth, f"GAE T={longest} ours", f"GAE T={middle} ours", "<=", 1.25, longest / middle
        )
    )
    return Section(steps, figures, skipped)


def gae_steps(rewards: Tensor, values: Tensor, dones: Tensor) -> dict[str, Step]:
    """Return ours, the plain loop and, where it is installed, torchrl's vectorised estimate."""
    steps: dict[str, Step] = {
        "ours": lambda: generalized_advantages(
            rewards, values, gamma=GAMMA, gae_lambda=GAE_LAMBDA, dones=dones
        ),
        "loop": lambda: loop_gae(rewards, values, dones),
    }
    if is_installed("torchrl"):
        from torchrl.objectives.value.functional import vec_generalized_advantage_estimate as theirs

        inputs = [
            x.unsqueeze(-1).contiguous() for x in (values[:, :-1], values[:, 1:], rewards, dones)
        ]
        steps["torchrl"] = lambda: theirs(GAMMA, GAE_LAMBDA, *inputs)
    return steps


def loop_gae(rewards: Tensor, values: Tensor, dones: Tensor) -> tuple[Tensor, Tensor]:
    """Estimate advantages by going back in time, one step after the other."""
    goes_on, advantages = 1.0 - dones.to(rewards.dtype), torch.empty_like(rewards)
    deltas = rewards + GAMMA * values[:, 1:] * goes_on - values[:, :-1]
    running = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        running = deltas[:, t] + GAMMA * GAE_LAMBDA * goes_on[:, t] * running
        advantages[:, t] = running
    return advantages, advantages + values[:, :-1]


def loss_section(sizes: Sizes, seed: int) -> Section:
    """Compare the dapo loss, forward and backward."""
    generator, shape = torch.Generator().manual_seed(seed), sizes.loss
    logprobs = (-torch.rand(shape, generator=generator)).requires_grad_()
    old = logprobs.detach() + 0.3 * torch.randn(shape, generator=generator)
    advantages = torch.randn(shape[:2], generator=generator)
    is_valid = (
        torch.arange(shape[2])
        < torch.randint(1, shape[2] + 1, shape[:2], generator=generator)[..., None]
    )

    def ours() -> None:
        loss = policy_loss(
            logprobs, old, advantages, is_valid,
            Dapo(clip_low=CLIP_LOW, clip_high=CLIP_HIGH),
        )  # fmt: skip
        torch.autograd.grad(loss, logprobs)

    steps: dict[str, Step] = {
        "policy loss ours": ours,
        "policy loss loop": lambda: torch.autograd.grad(
            loop_loss(logprobs, old, advantages, is_valid), logprobs
        ),
    }
    figures = [
        Figure(
            "policy loss: loop over rows / ours", "policy loss loop", "policy loss ours", ">=", 1.0
        )
    ]
    name = "policy loss: TRL / ours"
    if not is_installed("trl"):
        return Section(steps, figures, {name: "trl is not installed"})
    steps["policy loss TRL"] = trl_step(logprobs, old, advantages, is_valid)
    return Section(
        steps, [*figures, Figure(name, "policy loss TRL", "policy loss ours", ">=", 1.0)]
    )


def loop_loss(logprobs: Tensor, old: Tensor, advantages: Tensor, is_valid: Tensor) -> Tensor:
    """Return the same loss, row by row, over the valid decisions alone."""
    total = torch.zeros(())
    for p, g in ((p, g) for p in range(logprobs.shape[0]) for g in range(logprobs.shape[1])):
        kept, advantage = is_valid[p, g], advantages[p, g]
        ratio = (logprobs[p, g][kept] - old[p, g][kept]).exp()
        total = (
            total
            - torch.minimum(
                ratio * advantage, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage
            ).sum()
        )
    return total / is_valid.sum()


def trl_step(logprobs: Tensor, old: Tensor, advantages: Tensor, is_valid: Tensor) -> Step:
    """Return TRL's method on the stub of the conformance tests."""
    sys.path.append(str(ROOT / "tests" / "conformance"))
    from cases import LossCase
    from oracle_trl import GRPOTrainer, loss_inputs, loss_stub

    batch = loss_inputs(LossCase("benchmark", logprobs, old, old, advantages, is_valid))

    def step() -> None:
        stub = loss_stub(
            logprobs.flatten(0, 1), "dapo", level="token", beta=0.0, corrected=False, delta=None
        )
        torch.autograd.grad(GRPOTrainer._compute_loss(stub, None, batch), logprobs)

    return step


def head_section(sizes: Sizes, seed: int) -> Section:
    """Compare log-probabilities and entropies of a large softmax, forward and backward."""
    rows, width, choices = sizes.head
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, width, generator=generator).requires_grad_()
    weight = (torch.randn(choices, width, generator=generator) / width**0.5).requires_grad_()
    actions = torch.randint(0, choices, (rows,), generator=generator)

    def chunked() -> None:
        logprobs, entropy = chunked_logprobs(hidden, weight, actions)
        torch.autograd.grad(logprobs.mean() + 0.01 * entropy.mean(), [hidden, weight])

    def plain() -> None:
        log_probs = F.linear(hidden, weight).log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        logprobs = log_probs.gather(-1, actions[:, None])
        torch.autograd.grad(logprobs.mean() + 0.01 * entropy.mean(), [hidden, weight])

    name, above, below = f"chunked_logprobs V={choices}: ours / plain", "head ours", "head plain"
    seconds, memory = (
        Figure(f"{name}, time", above, below, "<=", 1.1),
        Figure(f"{name}, memory", above, below, "<=", 1 / 8),
    )
    return Section({above: chunked, below: plain}, [seconds], memory=[memory])


def points_section(sizes: Sizes, seed: int) -> Section:
    """Compare draws of k cells without replacement with their log-probabilities, forward and backward."""
    prompts, group, k, side = sizes.points
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(prompts, side**2, generator=generator).requires_grad_()
    is_allowed = torch.ones(prompts, side**2, dtype=torch.bool)

    def ours() -> None:
        actions = gumbel_top_k(logits, k, group, generator=generator, is_allowed=is_allowed)
        torch.autograd.grad(
            plackett_luce_logprobs(logits, actions, is_allowed=is_allowed).sum(), logits
        )

    def loop() -> None:
        torch.autograd.grad(loop_points(logits, k, group, generator), logits)

    figure = Figure(
        f"Plackett-Luce k={k}, {side}x{side} cells: loop / ours",
        "points loop",
        "points ours",
        ">=",
        20.0,
    )
    return Section({"points ours": ours, "points loop": loop}, [figure])


def loop_points(logits: Tensor, k: int, group: int, generator: torch.Generator) -> Tensor:
    """Draw and score sample by sample and point by point; the sum of all log-probabilities."""
    total = torch.zeros(())
    for row in logits:
        for _ in range(group):
            left = row
            for _ in range(k):
                log_probs = left.log_softmax(-1)
                cell = torch.multinomial(log_probs.detach().exp(), 1, generator=generator)
                total = total + log_probs[cell].sum()
                left = left.index_fill(0, cell, -torch.inf)
    return total


SECTIONS: tuple[Callable[[Sizes, int], Section], ...] = (
    gae_section,
    loss_section,
    head_section,
    points_section,
)


def take_turns(steps: Mapping[str, Step], *, rounds: int) -> dict[str, list[float]]:
    """Time every step once per round, in an order that turns, after one round that does not count; seconds per call."""
    calls = {
        name: max(1, round(TURN_SECONDS / max(timed(step), 1e-9))) for name, step in steps.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seconds[name].append(timed(steps[name], calls[name]))
    return seconds


def timed(step: Step, calls: int = 1) -> float:
    """Return the seconds that one call takes, averaged over some."""
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def compare(figure: Figure, values: Mapping[str, Sequence[float]]) -> Spread:
    """Compare two steps within rounds."""
    return ratio(values[figure.above], values[figure.below], scale=figure.scale)


def measure_memory(section: Section, *, rounds: int) -> dict[str, list[float]]:
    """Return what each step adds at its peak, in turns."""
    memory: dict[str, list[float]] = {name: [] for name in section.steps}
    for _ in range(rounds):
        for name, step in section.steps.items():
            memory[name].append(max(added_mb(step), PAGE_MB))  # a ratio needs more than nothing
    return memory


def measure(sizes: Sizes, *, rounds: int, seed: int) -> dict[str, Any]:
    """Measure everything; JSON-able."""
    about = machine.hardware() | machine.library(torch.get_num_threads()) | machine.code(seed)
    found: dict[str, Any] = {
        "machine": about,
        "milliseconds": {},
        "memory_mb": {},
        "figures": [],
        "skipped": {},
    }
    for make in SECTIONS:
        section = make(sizes, seed)
        seconds = take_turns(section.steps, rounds=rounds)
        found["milliseconds"] |= {
            name: 1000 * statistics.median(values) for name, values in seconds.items()
        }
        found["figures"] += [
            vars(figure) | vars(compare(figure, seconds)) for figure in section.figures
        ]
        found["skipped"] |= section.skipped
        if section.memory:
            add_memory(found, section, rounds=rounds)
    return found


def add_memory(found: dict[str, Any], section: Section, *, rounds: int) -> None:
    """Add the section's figures of memory, or why there are none."""
    try:
        peaks = measure_memory(section, rounds=rounds)
    except OSError:
        found["skipped"] |= {
            figure.name: "this system cannot reset the mark of its peak memory"
            for figure in section.memory
        }
        return
    found["memory_mb"] |= {name: statistics.median(values) for name, values in peaks.items()}
    found["figures"] += [vars(figure) | vars(compare(figure, peaks)) for figure in section.memory]


def format_report(found: Mapping[str, Any]) -> str:
    """Return the report as text."""
    lines = [", ".join(f"{name} {value}" for name, value in found["machine"].items()), ""]
    lines.append(f"{'step':<28}{'ms (median)':>13}{'added memory, MB':>19}")
    for name, value in found["milliseconds"].items():
        memory = f"{found['memory_mb'][name]:.0f}" if name in found["memory_mb"] else ""
        lines.append(f"{name:<28}{value:>13.3f}{memory:>19}".rstrip())
    lines += ["", f"{'':<46}{'median':>8}{'min':>9}{'max':>9}   wanted"]
    for figure in found["figures"]:
        wanted = f"{figure['sign']} {figure['limit']:g}"
        lines.append(
            f"{figure['name']:<46}{figure['median']:>8.2f}{figure['low']:>9.2f}{figure['high']:>9.2f}   {wanted}"
        )
    lines += [f"{name:<46} skipped: {reason}" for name, reason in found["skipped"].items()]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="rounds (default 7)")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of torch (default 1: more only on idle cores)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="small sizes")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the tables")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    found = measure(SMOKE if args.smoke else FULL, rounds=args.repeats, seed=args.seed)
    print(json.dumps(found, indent=2) if args.json else format_report(found))


if __name__ == "__main__":
    main()
