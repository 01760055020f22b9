"""Measure contenders that take turns in one process."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from molecule_contenders.plain_loop import PlainLoop
from molecule_contenders.with_task import TaskLoop
from molecule_contenders.workload import Workload

SAMPLE, SAMPLE_PLAIN = "sample", "sample, plain"
UPDATE, UPDATE_BY_CHUNKS, UPDATE_PLAIN = "update", "update by chunks", "update, plain"
# Of a ratio: the plain contender, and ours.
PAIRS = {
    "sampling": (SAMPLE_PLAIN, SAMPLE),
    "update": (UPDATE_PLAIN, UPDATE),
    "update by chunks": (UPDATE_PLAIN, UPDATE_BY_CHUNKS),
}

Step = Callable[[], Tensor]


@dataclass(frozen=True)
class Turn:
    """Seconds per graph of one contender in one round."""

    wall: float
    cpu: float


def make_steps(workload: Workload) -> dict[str, tuple[Step, int]]:
    """Return what is measured, with the number of graphs of one call."""
    ours, plain = TaskLoop(workload), PlainLoop(workload)

    def once(step: Step) -> Step:
        """Add gradients to none: as the first backward of an optimiser step does."""

        def run() -> Tensor:
            workload.policy.zero_grad()
            return step()

        return run

    return {
        SAMPLE: (ours.sample, workload.graphs),
        SAMPLE_PLAIN: (plain.sample, workload.plain_graphs),
        UPDATE: (once(ours.update), workload.graphs),
        UPDATE_BY_CHUNKS: (once(ours.update_by_chunks), workload.graphs),
        UPDATE_PLAIN: (once(plain.update), workload.plain_graphs),
    }


def take_turns(steps: dict[str, tuple[Step, int]], rounds: int) -> dict[str, list[Turn]]:
    """Return the seconds per graph of every contender, one turn in each round; the order turns, too."""
    found: dict[str, list[Turn]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            step, graphs = steps[name]
            found[name].append(timed(step, graphs))
    return found


def timed(step: Step, graphs: int) -> Turn:
    """Return the seconds that a call takes for each of its graphs."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return Turn((time.perf_counter() - wall) / graphs, (time.process_time() - cpu) / graphs)
