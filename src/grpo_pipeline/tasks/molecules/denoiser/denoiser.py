"""The network that predicts the molecule behind a noisy graph: logits of x0 for every atom, charge and bond."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from grpo_pipeline.core.sampling.plackett_luce import tempered_logits
from grpo_pipeline.core.training.precision import at_least_float32, exact_region
from grpo_pipeline.tasks.molecules.denoiser.layers import (
    FeedForward,
    GraphLayer,
    GraphState,
    layout_of,
)
from grpo_pipeline.tasks.molecules.diffusion.noise import GraphNoise
from grpo_pipeline.tasks.molecules.diffusion.params import DenoiserParams, NoiseParams, X0LossParams
from grpo_pipeline.tasks.molecules.graphs.graphs import (
    Components,
    GraphPrompts,
    dense_pairs,
    entry_logprobs,
    pair_index,
)

# Compute features that attention over nodes cannot count: the bonds of each class at a node, and the short cycles through it.
#
# Source: the structural features of DiGress, arXiv 2209.14734. How this differs: counts enter as
# log(1 + count), which stays moderate for the dense graphs of the first denoising steps, in place of a tenth cut off at 1.

CYCLES = (3, 4, 5)


def structure_features(
    bonds: Tensor, nodes: int, classes: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return what every node and every graph is told of the bonds, as log(1 + count).

    Args:
        bonds: classes of the pairs, integers [B, M], 0 = none and for padding.
        nodes: n.
        classes: K, the number of bond classes, "none" among them.
        dtype: floating type of the result.

    Returns:
        Bonds of each class at every node, and cycles of 3, 4 and 5 nodes through it: [B, n, K - 1 + 3], 0 for padding. Cycles of
        3, 4 and 5 nodes in each graph: [B, 3].
    """
    cycles = cycle_counts(bonds, nodes, dtype)
    at_nodes = torch.cat([bond_counts(bonds, nodes, classes, dtype), cycles], dim=-1)
    length = torch.tensor(CYCLES, dtype=dtype, device=bonds.device)
    # A cycle of k nodes is counted at each of them, so that the sum over nodes is divided by k; [B, 3].
    return at_nodes.log1p_(), (cycles.sum(dim=1) / length).log1p_()


def bond_counts(bonds: Tensor, nodes: int, classes: int, dtype: torch.dtype) -> Tensor:
    """Count the bonds of each class but "none" at every node, [B, n, K - 1]."""
    known = torch.arange(1, classes, dtype=bonds.dtype, device=bonds.device)
    each = (bonds.unsqueeze(1) == known.unsqueeze(-1)).to(dtype)  # [B, K - 1, M]
    # ends: [M, n], 1 at both nodes of a pair.
    ends = functional.one_hot(pair_index(nodes, bonds.device), nodes).sum(dim=0).to(dtype)
    with exact_region(bonds):
        return (each @ ends).transpose(1, 2)  # [B, n, K - 1]


def cycle_counts(bonds: Tensor, nodes: int, dtype: torch.dtype) -> Tensor:
    """Count the cycles of 3, 4 and 5 different nodes through every node, whatever the bonds' classes; [B, n, 3].

    Of the closed walks of k steps, w_k = diag(A^k) with the adjacency A, those are taken off that visit a node twice; both
    directions of a cycle are one. With the degree d:

        c3 = w3 / 2
        c4 = (w4 - d (d - 1) - A d) / 2
        c5 = (w5 - 2 d w3 - 2 (A o A^2) d - A w3 + 5 w3) / 2
    """
    with exact_region(bonds):
        a = dense_pairs((bonds > 0).to(dtype), nodes)  # A: [B, n, n]
        a2 = a @ a
        a3 = a2 @ a
        degree, w3 = a.sum(dim=-1), a3.diagonal(dim1=1, dim2=2)  # [B, n]
        w4, w5 = (
            (a2 * a2).sum(dim=-1),
            (a2 * a3).sum(dim=-1),
        )  # diagonals of products of symmetric matrices
        c4 = w4 - degree * (degree - 1) - _times(a, degree)
        c5 = w5 - 2 * degree * w3 - 2 * _times(a * a2, degree) - _times(a, w3) + 5 * w3
        return torch.stack([w3, c4, c5], dim=-1) / 2  # [B, n, 3]


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


TIME_AND_SIZE = 2


class Denoiser(nn.Module):
    """A graph transformer; renaming the nodes renames the predictions, and padding changes none."""

    def __init__(
        self, params: DenoiserParams, classes: Components[int], conditions: int = 0
    ) -> None:
        """Build with fresh weights from the global random state; see ``build_policy``.

        Args:
            params: sizes.
            classes: K of each component.
            conditions: F, numbers that a prompt holds beside the size.
        """
        super().__init__()
        p, self.classes = params, classes
        self.with_cycles = p.features == "cycles"
        self.atom_embedding = nn.Embedding(classes.atoms, p.width)
        self.charge_embedding = nn.Embedding(classes.charges, p.width)
        self.pair_embedding = nn.Embedding(classes.bonds, p.pair_width)
        if self.with_cycles:
            self.node_features = nn.Linear(classes.bonds - 1 + len(CYCLES), p.width, bias=False)
        # Numbers that the whole graph is told: time, size, conditions, cycles.
        told = TIME_AND_SIZE + conditions + (len(CYCLES) if self.with_cycles else 0)
        hidden = p.global_width * p.expansion
        self.whole = nn.Sequential(
            nn.Linear(told, hidden), nn.GELU(), nn.Linear(hidden, p.global_width)
        )
        self.layers = nn.ModuleList(
            GraphLayer(p.width, p.pair_width, p.global_width, p.heads, p.expansion)
            for _ in range(p.layers)
        )
        self.heads = nn.ModuleDict(
            {
                "atoms": Head(p.width, p.global_width, p.expansion, classes.atoms),
                "charges": Head(p.width, p.global_width, p.expansion, classes.charges),
                "bonds": Head(p.pair_width, p.global_width, p.expansion, classes.bonds),
            }
        )

    def forward(
        self, noisy: Components[Tensor], prompts: GraphPrompts, time: Tensor
    ) -> Components[Tensor]:
        """Return logits of x0.

        Args:
            noisy: z_t, integers: atoms [B, n], charges [B, n], bonds [B, M]; padding 0.
            prompts: sizes and conditions, B rows.
            time: t / T of each row, [B], in (0, 1].

        Returns:
            [B, n, K], [B, n, K], [B, M, K]; those of padding mean nothing.
        """
        layout = layout_of(prompts, self.atom_embedding.weight.dtype)
        state = self._embed(noisy, prompts, time)
        for layer in self.layers:
            state = cast(GraphLayer, layer)(state, layout)
        rows = Components(state.nodes, state.nodes, state.pairs)  # [B, N, D or E]
        heads = Components(*self.heads.values())
        return heads.each(lambda head, part: head(part, state.whole), rows)

    def _embed(self, noisy: Components[Tensor], prompts: GraphPrompts, time: Tensor) -> GraphState:
        dtype = self.atom_embedding.weight.dtype
        # Nodes [B, n, D], pairs [B, M, E]; what holds for the whole graph (time, size, conditions, cycles) goes into [B, Y].
        nodes = self.atom_embedding(noisy.atoms.long()) + self.charge_embedding(
            noisy.charges.long()
        )
        told = [time[:, None], prompts.sizes[:, None].to(dtype).log(), prompts.conditions]
        if self.with_cycles:
            at_nodes, of_graph = structure_features(
                noisy.bonds, prompts.nodes, self.classes.bonds, dtype
            )
            nodes = nodes + self.node_features(at_nodes)
            told.append(of_graph)
        whole = self.whole(torch.cat([part.to(dtype) for part in told], dim=-1))  # [B, Y]
        return GraphState(nodes, self.pair_embedding(noisy.bonds.long()), whole)


class Head(nn.Module):
    """From rows to logits."""

    def __init__(self, width: int, global_width: int, expansion: int, classes: int) -> None:
        super().__init__()
        self.forward_part = FeedForward(width, global_width, expansion)
        self.logits = nn.Linear(width, classes)

    def forward(self, rows: Tensor, whole: Tensor) -> Tensor:
        """Return [B, N, K] of rows [B, N, D]."""
        logits: Tensor = self.logits(self.forward_part(rows, whole))
        return logits


# The policy: a denoiser with the noise that it was made for; one decision is the step from z_t to z_{t-1}.


class GraphPolicy(nn.Module):
    """Predicts x0 and steps backwards through the noise; the limit distributions are stored with the weights."""

    def __init__(self, denoiser: Denoiser, noise: GraphNoise) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.noise = noise

    def x0_logits(
        self,
        noisy: Components[Tensor],
        prompts: GraphPrompts,
        t: Tensor,
        *,
        temperature: float = 1.0,
    ) -> Components[Tensor]:
        """Return logits of x0 / temperature, in float32 at least.

        Args:
            noisy: z_t, integers: atoms [B, n], charges [B, n], bonds [B, M].
            prompts: sizes and conditions, B rows.
            t: int64 [B], 1..T.
            temperature: divides the logits, above 0; the same number in sampler and scorer.
        """
        dtype = self.denoiser.atom_embedding.weight.dtype
        logits: Components[Tensor] = self.denoiser(noisy, prompts, t.to(dtype) / self.noise.steps)
        return logits.each(lambda z: tempered_logits(at_least_float32(z), temperature))

    def step_log_probs(
        self,
        noisy: Components[Tensor],
        prompts: GraphPrompts,
        t: Tensor,
        *,
        temperature: float = 1.0,
    ) -> Components[Tensor]:
        """Return log p(z_{t-1} | z_t) of every entry, [B, N, K] each; arguments as for ``x0_logits``."""
        return self.noise.reverse(
            self.x0_logits(noisy, prompts, t, temperature=temperature), noisy, t
        )


def build_policy(
    limits: Components[Tensor],
    noise: NoiseParams,
    denoiser: DenoiserParams,
    *,
    conditions: int = 0,
    seed: int,
) -> GraphPolicy:
    """Return a policy with fresh weights, float32 on the CPU; the global random state stays as it was.

    Args:
        limits: of the noise, see ``noise.limits_of``; their lengths are the sizes of the vocabularies.
        noise: parameters of the noise.
        denoiser: parameters of the network.
        conditions: F, numbers that a prompt holds beside the size.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GraphPolicy(
            Denoiser(denoiser, limits.each(len), conditions), GraphNoise(limits, noise)
        )


def x0_counts(prompts: GraphPrompts) -> Tensor:
    """Return what each part of the loss is a mean over, float64 [3]: nodes, nodes, pairs of nodes, without padding."""
    return torch.stack([mask.sum() for mask in prompts.masks]).double()


def x0_loss(
    logits: Components[Tensor],
    clean: Components[Tensor],
    masks: Components[Tensor],
    weights: X0LossParams,
    *,
    counts: Tensor,
) -> Tensor:
    """Return the weighted cross-entropy of x0, in nats.

        sum over components of weight * (sum over entries of -log softmax(logits)[x0] / count)

    Each component is a mean over its own entries of all graphs, each bond once. Source: DiGress, arXiv 2209.14734; charges: MiDi,
    arXiv 2302.09048.

    Args:
        logits: [B, N, K] each.
        clean: x0, integers [B, N] each.
        masks: which entries belong to the graph, bool [B, N] each.
        weights: of the components.
        counts: denominators [3], ``x0_counts`` of all that the loss is a mean over. A part without entries is 0.

    Returns:
        A scalar with gradient.
    """
    log_probs = entry_logprobs(logits.each(lambda z: z.log_softmax(dim=-1)), clean, masks)
    sums = torch.stack([-part.sum() for part in log_probs])  # [3]
    scale = torch.tensor(
        [weights.atoms, weights.charges, weights.bonds], dtype=sums.dtype, device=sums.device
    )  # [3]
    return (scale * sums / counts.to(sums).clamp(min=1)).sum()
