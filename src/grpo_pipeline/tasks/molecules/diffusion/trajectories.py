"""Hold drawn trajectories: the graphs of every denoising step, from pure noise to the molecule."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_entries import graphs_of
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs


@dataclass(frozen=True)
class Trajectories(Rollouts):
    """P x G trajectories of T steps; a decision is the step from z_t to z_{t-1}.

    ``actions`` holds t, the time of each kept decision: [P, G, L], T..1 for all, fewer after ``choose_decisions``. The graphs
    hold the drawn classes. The index of the time axis is s, from 0 (the molecule) to T (noise).

    Attributes:
        atoms: uint8 [P, G, T + 1, n], class of the element in z_s.
        charges: uint8 [P, G, T + 1, n].
        bonds: uint8 [P, G, T + 1, M], one entry per pair of nodes.
        sizes: int64 [P], nodes of each prompt's graphs.
        conditions: [P, F], see ``GraphPrompts``.
    """

    atoms: Tensor
    charges: Tensor
    bonds: Tensor
    sizes: Tensor
    conditions: Tensor

    @property
    def prompts(self) -> GraphPrompts:
        """Return the prompts that the trajectories were drawn from, P rows."""
        return GraphPrompts(self.sizes, self.conditions, self.atoms.shape[-1])

    @property
    def entries(self) -> Components[Tensor]:
        """The graphs of all steps, [P, G, T + 1, N] each."""
        return Components(self.atoms, self.charges, self.bonds)

    @property
    def steps(self) -> int:
        """T, the number of steps."""
        return self.atoms.shape[2] - 1


def graphs_at(rollouts: Trajectories, s: int) -> MoleculeGraphs:
    """Select z_s of every trajectory, N = P * G graphs, row n = p * G + g; s = 0 gives the molecules."""
    group_size = rollouts.atoms.shape[1]
    entries = rollouts.entries.each(lambda part: part[:, :, s].flatten(0, 1))  # [P * G, N] each
    return graphs_of(entries, rollouts.sizes.repeat_interleave(group_size))


def transitions_of(
    rollouts: Trajectories, decisions: slice
) -> tuple[Components[Tensor], Components[Tensor], Tensor]:
    """Select z_t, z_{t-1} and t of these decisions, a row for each: R = P * G * S rows, uint8 entries, t int64 [R]."""
    t = rollouts.actions[:, :, decisions]  # [P, G, S]
    before, after = (rollouts.entries.each(lambda part, s=s: _at(part, s)) for s in (t, t - 1))
    return before, after, t.flatten()


def choose_decisions(
    rollouts: Trajectories, count: int, *, generator: torch.Generator
) -> Trajectories:
    """Keep ``count`` decisions of each trajectory, drawn uniformly without replacement; the graphs stay.

    The G trajectories of a prompt keep the same times, so that they are compared at the same noise. A mean over the kept
    decisions is an unbiased estimate of the mean over all. A sum must be multiplied by T / count. A ratio of whole trajectories
    becomes a ratio of their kept parts.

    Args:
        rollouts: P x G trajectories with L decisions.
        count: 1..L.
        generator: the only source of randomness, on the device of the rollouts.

    Raises:
        ValueError: if there are fewer decisions than ``count``.
    """
    prompts, group_size, length = rollouts.actions.shape
    if not 1 <= count <= length:
        raise ValueError(
            f"count must be between 1 and the {length} decisions of a trajectory, got {count}; correct it"
        )
    # The places of the largest of L uniform numbers are a uniform draw without replacement.
    score = torch.rand(
        prompts, length, generator=generator, dtype=torch.float64, device=rollouts.actions.device
    )
    kept = score.topk(count, dim=1).indices.sort(dim=1).values  # [P, count]
    index = kept[:, None].expand(prompts, group_size, count)  # [P, G, count]
    chosen = {
        name: getattr(rollouts, name).gather(2, index)
        for name in ("actions", "logprobs", "is_valid")
    }
    return replace(rollouts, **chosen)


def _at(states: Tensor, s: Tensor) -> Tensor:
    """Select states [P, G, T + 1, k] at the times s [P, G, S] as rows, [P * G * S, k]."""
    index = s.unsqueeze(-1).expand(*s.shape, states.shape[-1])  # [P, G, S, k]
    return states.gather(2, index).flatten(0, 2)  # [P * G * S, k]
