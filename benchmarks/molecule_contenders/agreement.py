"""Do the contenders compute the same? Log-probabilities of the same trajectories, and the gradient of the same loss."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from molecule_contenders.plain_loop import PlainLoop
from molecule_contenders.with_task import TaskLoop
from molecule_contenders.workload import Workload

# The distance that is allowed: in nats for log-probabilities, as a share of its size for a gradient.
ALLOWED = 1e-4


def distances(workload: Workload) -> dict[str, float]:
    """Return how far ours are from the plain loop's.

    log-probability    the largest |ours - plain| / number of entries of a graph, over all graphs and steps
    gradient           |ours - plain| / |plain| over all weights, of both ways to walk back
    """
    work = replace(workload, plain_graphs=workload.graphs)
    ours, plain = TaskLoop(work), PlainLoop(work)
    logprobs, wanted = _gradient_of(work, plain.update)
    found: dict[str, float] = {}
    for name, update in (("update", ours.update), ("update by chunks", ours.update_by_chunks)):
        other, gradient = _gradient_of(work, update)
        found[f"{name}: log-probability"] = float((other - logprobs).abs().max())
        found[f"{name}: gradient"] = float((gradient - wanted).norm() / wanted.norm())
    return found


def check(found: dict[str, float]) -> None:
    """Check that what is compared is the same.

    Raises:
        RuntimeError: if something is further away than rounding explains.
    """
    for name, distance in found.items():
        if not distance <= ALLOWED:
            raise RuntimeError(
                f"{name} must agree with the plain loop to {ALLOWED}, got {distance:.2g}; the times would be of different work"
            )


def _gradient_of(work: Workload, update: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    work.policy.zero_grad()
    logprobs = update()
    return logprobs, torch.cat(
        [p.grad.flatten() for p in work.policy.parameters() if p.grad is not None]
    )
