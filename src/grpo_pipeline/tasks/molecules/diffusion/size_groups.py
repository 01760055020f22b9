"""Work on prompts in groups of similar size, so that a small graph is not computed as wide as the largest of the data.

How this differs from public versions: those pad every graph of a batch, or of the data set, to the same width. The cost grows
with the square of the width. A drug-like molecule of mean size has about a third of the pairs of the largest.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories
from grpo_pipeline.tasks.molecules.graphs.components import NAMES, Components
from grpo_pipeline.tasks.molecules.graphs.graph_entries import pair_index, pair_lookup
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts

# Cost of a group's calls and copies, as the number of entries that take as long to compute. An unlisted device
# counts as an accelerator, whose calls cost more in proportion to its arithmetic.
CUT_COSTS = {"cpu": 5_000, "cuda": 250_000}


@dataclass(frozen=True)
class SizeGroup:
    """Prompts that are computed together.

    Attributes:
        rows: int64 [R], their numbers, ascending.
        nodes: width to which their graphs are cut; none is larger.
        is_whole: whether these are all prompts at their own width, so that no cut is needed.
    """

    rows: Tensor
    nodes: int
    is_whole: bool


def size_groups(prompts: GraphPrompts, copies: int = 1) -> list[SizeGroup]:
    """Find the cheapest groups of prompts, by ascending size; a single group of all where cutting costs more.

        cost = sum over groups of (cut cost + prompts * copies * n (n + 1) / 2),   n = the largest size of the group

    n (n + 1) / 2 is the number of nodes and pairs of a graph of n nodes. The groups follow from the sizes and ``copies`` alone.

    Args:
        prompts: P rows.
        copies: graphs of each prompt that are computed in one call.
    """
    counts = sorted(Counter(prompts.sizes.tolist()).items())
    cut_cost = CUT_COSTS.get(prompts.sizes.device.type, CUT_COSTS["cuda"])
    cost, widths = _cheapest(counts, copies, cut_cost)
    # A single group of all prompts needs no cut.
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
    """Cut the prompts of a group to its width."""
    if group.is_whole:
        return prompts
    return GraphPrompts(prompts.sizes[group.rows], prompts.conditions[group.rows], group.nodes)


def cut_entries(entries: Components[Tensor], group: SizeGroup) -> Components[Tensor]:
    """Cut the entries of a group's graphs to its width.

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
    """Cut the trajectories of a group's prompts to its width."""
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
    """Join the trajectories of all groups at the width ``nodes``, in the order of the prompts; padding is 0."""
    if groups[0].is_whole:
        return parts[0]
    wide = [replace(part, **_widened(part, nodes)) for part in parts]
    names = [field.name for field in fields(parts[0])]
    return replace(
        wide[0],
        **{name: join_rows([getattr(part, name) for part in wide], groups) for name in names},
    )


def join_rows(parts: Sequence[Tensor], groups: Sequence[SizeGroup]) -> Tensor:
    """Join parts [R, ...] into rows [P, ...] in the order of the prompts, with the gradient of the parts."""
    if groups[0].is_whole:
        return parts[0]
    # The argsort of the rows' numbers puts each prompt back into its place, [P, ...].
    return torch.cat(list(parts))[torch.cat([group.rows for group in groups]).argsort()]


def _cheapest(
    counts: Sequence[tuple[int, int]], copies: int, cut_cost: int
) -> tuple[int, list[int]]:
    """Compute the least cost of groups of consecutive sizes, and their widths; counts are (size, prompts), ascending."""
    # Dynamic programming: best[i] is the cheapest cut of the i smallest sizes, with the start of its last group.
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
    """Find the places of the entries of the first ``nodes`` nodes among those of ``wide`` nodes."""
    first, second = pair_index(nodes, device)
    places = torch.arange(nodes, device=device)
    return Components(places, places, pair_lookup(wide, device)[first, second])


def _widened(part: Trajectories, nodes: int) -> dict[str, Tensor]:
    kept = _kept_entries(nodes, part.prompts.nodes, part.atoms.device)
    widths = Components(nodes, nodes, nodes * (nodes - 1) // 2)

    def widen(states: Tensor, index: Tensor, width: int) -> Tensor:
        return states.new_zeros(*states.shape[:-1], width).index_copy_(-1, index, states)

    return dict(zip(NAMES, part.entries.each(widen, kept, widths), strict=True))
