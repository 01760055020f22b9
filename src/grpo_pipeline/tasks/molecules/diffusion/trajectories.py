"""Trajectories as they were drawn: the graphs of every denoising step, from pure noise to the molecule."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.molecules.graphs.graphs import (
    NAMES,
    Components,
    GraphPrompts,
    MoleculeGraphs,
    graphs_of,
    pair_index,
    pair_lookup,
)


@dataclass(frozen=True)
class Trajectories(Rollouts):
    """P x G trajectories of T steps; a decision is the step from z_t to z_{t-1}.

    ``actions`` holds t, the time of each decision that is kept: [P, G, L], T..1 with all of them, fewer after
    ``choose_decisions``. What was drawn is in the graphs; the index of the time axis is s, from 0 (the molecule) to T (noise).

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
    """Return z_s of every trajectory, N = P * G graphs, row n = p * G + g; s = 0 are the molecules."""
    group_size = rollouts.atoms.shape[1]
    entries = rollouts.entries.each(lambda part: part[:, :, s].flatten(0, 1))  # [P * G, N] each
    return graphs_of(entries, rollouts.sizes.repeat_interleave(group_size))


def transitions_of(
    rollouts: Trajectories, decisions: slice
) -> tuple[Components[Tensor], Components[Tensor], Tensor]:
    """Return z_t, z_{t-1} and t of these decisions, one row for each: R = P * G * S rows, uint8 entries, t int64 [R]."""
    t = rollouts.actions[:, :, decisions]  # [P, G, S]
    before, after = (rollouts.entries.each(lambda part, s=s: _at(part, s)) for s in (t, t - 1))
    return before, after, t.flatten()


def choose_decisions(
    rollouts: Trajectories, count: int, *, generator: torch.Generator
) -> Trajectories:
    """Keep ``count`` decisions of each trajectory, drawn uniformly without replacement; the graphs stay.

    The G trajectories of a prompt keep the same times, so that they are compared at the same noise. A mean over the kept
    decisions estimates the mean over all of them without bias; a sum must be multiplied by T / count, and a ratio of whole
    trajectories becomes one of the kept part.

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
    """Return states [P, G, T + 1, k] at the times s [P, G, S] as rows, [P * G * S, k]."""
    index = s.unsqueeze(-1).expand(*s.shape, states.shape[-1])  # [P, G, S, k]
    return states.gather(2, index).flatten(0, 2)  # [P * G * S, k]


# Work on prompts in groups of similar size, so that a small graph is not computed as wide as the largest of the data.
#
# How this differs from public versions: those pad every graph of a batch, or of the data set, to one width. The work grows with
# the square of the width, and among drug-like molecules one of mean size has about a third of the pairs of the largest.

# What a group costs, in entries that could be computed instead: its calls, and the copies of cutting and joining. A device that
# is not named here is taken for an accelerator, whose calls cost more beside its arithmetic.
CUT_COSTS = {"cpu": 5_000, "cuda": 250_000}


@dataclass(frozen=True)
class SizeGroup:
    """Prompts that are worked on together.

    Attributes:
        rows: int64 [R], their numbers, ascending.
        nodes: width to which their graphs are cut; none is larger.
        is_whole: whether these are all prompts at their own width, so that there is nothing to cut.
    """

    rows: Tensor
    nodes: int
    is_whole: bool


def size_groups(prompts: GraphPrompts, copies: int = 1) -> list[SizeGroup]:
    """Return the cheapest groups of prompts, by ascending size; one whole group where cutting does not pay.

        cost = sum over groups of (cut cost + prompts * copies * n (n + 1) / 2),   n = the largest size of the group

    n (n + 1) / 2 is the number of nodes and pairs of a graph of n nodes. The groups follow from the sizes alone: the same
    prompts are cut alike in the draw and in the update, but for ``copies``.

    Args:
        prompts: P rows.
        copies: graphs of each prompt that are computed in one call.
    """
    counts = sorted(Counter(prompts.sizes.tolist()).items())
    cut_cost = CUT_COSTS.get(prompts.sizes.device.type, CUT_COSTS["cuda"])
    cost, widths = _cheapest(counts, copies, cut_cost)
    # One group of all prompts has no cut to pay for.
    if cost >= len(prompts.sizes) * copies * _entries(prompts.nodes):
        return [
            SizeGroup(
                torch.arange(len(prompts.sizes), device=prompts.sizes.device),
                prompts.nodes,
                is_whole=True,
            )
        ]
    lows = [0, *widths[:-1]]
    rows = [
        ((prompts.sizes > low) & (prompts.sizes <= high)).nonzero().flatten()
        for low, high in zip(lows, widths, strict=True)
    ]
    return [
        SizeGroup(part, width, is_whole=False) for part, width in zip(rows, widths, strict=True)
    ]


def cut_prompts(prompts: GraphPrompts, group: SizeGroup) -> GraphPrompts:
    """Return the prompts of a group at its width."""
    if group.is_whole:
        return prompts
    return GraphPrompts(prompts.sizes[group.rows], prompts.conditions[group.rows], group.nodes)


def cut_entries(entries: Components[Tensor], group: SizeGroup) -> Components[Tensor]:
    """Return the entries of a group's graphs at its width.

    Args:
        entries: atoms [P, ..., n], charges [P, ..., n], bonds [P, ..., M].
        group: of the P prompts.

    Returns:
        [R, ..., n'], [R, ..., n'] and [R, ..., M'].
    """
    if group.is_whole:
        return entries
    kept = _kept_entries(entries.atoms.shape[-1], group.nodes, entries.atoms.device)
    return entries.each(
        lambda part, index: part.index_select(0, group.rows).index_select(-1, index), kept
    )


def cut_trajectories(rollouts: Trajectories, group: SizeGroup) -> Trajectories:
    """Return the trajectories of a group's prompts at its width."""
    if group.is_whole:
        return rollouts
    graphs = dict(zip(NAMES, cut_entries(rollouts.entries, group), strict=True))
    names = [field.name for field in fields(rollouts) if field.name not in NAMES]
    return replace(
        rollouts, **graphs, **{name: getattr(rollouts, name)[group.rows] for name in names}
    )


def join_trajectories(
    parts: Sequence[Trajectories], groups: Sequence[SizeGroup], nodes: int
) -> Trajectories:
    """Return the trajectories of all prompts at the width ``nodes``, in the order of the prompts; padding 0."""
    if groups[0].is_whole:
        return parts[0]
    wide = [replace(part, **_widened(part, nodes)) for part in parts]
    names = [field.name for field in fields(parts[0])]
    return replace(
        wide[0],
        **{name: join_rows([getattr(part, name) for part in wide], groups) for name in names},
    )


def join_rows(parts: Sequence[Tensor], groups: Sequence[SizeGroup]) -> Tensor:
    """Return rows [P, ...] in the order of the prompts, of parts [R, ...]; with the gradient of the parts."""
    if groups[0].is_whole:
        return parts[0]
    # The argsort of the rows' numbers puts each prompt back into its place, [P, ...].
    return torch.cat(list(parts))[torch.cat([group.rows for group in groups]).argsort()]


def _cheapest(
    counts: Sequence[tuple[int, int]], copies: int, cut_cost: int
) -> tuple[int, list[int]]:
    """Return the least cost of groups of consecutive sizes, and their widths; counts are (size, prompts), ascending."""
    # Dynamic programming: best[i] is the cheapest cut of the i smallest sizes, by where its last group starts.
    best: list[tuple[int, list[int]]] = [(0, [])]
    for end, (width, _) in enumerate(counts, start=1):
        inside, options = 0, []
        for start in range(end - 1, -1, -1):
            inside += counts[start][1] * copies
            cost, widths = best[start]
            options.append((cost + cut_cost + inside * _entries(width), [*widths, width]))
        best.append(min(options))
    return best[-1]


def _entries(nodes: int) -> int:
    return nodes * (nodes + 1) // 2


def _kept_entries(wide: int, nodes: int, device: torch.device) -> Components[Tensor]:
    """Return where the atoms, charges and pairs of the first ``nodes`` nodes stand among those of ``wide`` nodes."""
    first, second = pair_index(nodes, device)
    places = torch.arange(nodes, device=device)
    return Components(places, places, pair_lookup(wide, device)[first, second])


def _widened(part: Trajectories, nodes: int) -> dict[str, Tensor]:
    kept = _kept_entries(nodes, part.prompts.nodes, part.atoms.device)
    widths = Components(nodes, nodes, nodes * (nodes - 1) // 2)

    def widen(states: Tensor, index: Tensor, width: int) -> Tensor:
        return states.new_zeros(*states.shape[:-1], width).index_copy_(-1, index, states)

    return dict(zip(NAMES, part.entries.each(widen, kept, widths), strict=True))
