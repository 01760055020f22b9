"""Predict the molecule behind a noisy graph: logits of x0 for every atom, charge and bond."""

from typing import cast

import torch
from torch import Tensor, nn

from grpo_pipeline.tasks.molecules.denoiser.graph_layer import EXPANSION, FeedForward, GraphLayer
from grpo_pipeline.tasks.molecules.denoiser.graph_layout import GraphState, layout_of
from grpo_pipeline.tasks.molecules.denoiser.structure_features import CYCLES, structure_features
from grpo_pipeline.tasks.molecules.diffusion.params import DenoiserParams
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts

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
        self.atom_embedding = nn.Embedding(classes.atoms, p.width)
        self.charge_embedding = nn.Embedding(classes.charges, p.width)
        self.pair_embedding = nn.Embedding(classes.bonds, p.pair_width)
        self.node_features = nn.Linear(classes.bonds - 1 + len(CYCLES), p.width, bias=False)
        # Inputs of the whole graph: time, size, conditions, cycles.
        told = TIME_AND_SIZE + conditions + len(CYCLES)
        hidden = p.global_width * EXPANSION
        self.whole = nn.Sequential(
            nn.Linear(told, hidden), nn.GELU(), nn.Linear(hidden, p.global_width)
        )
        self.layers = nn.ModuleList(
            GraphLayer(p.width, p.pair_width, p.global_width, p.heads) for _ in range(p.layers)
        )
        self.heads = nn.ModuleDict(
            {
                "atoms": Head(p.width, p.global_width, classes.atoms),
                "charges": Head(p.width, p.global_width, classes.charges),
                "bonds": Head(p.pair_width, p.global_width, classes.bonds),
            }
        )

    def forward(
        self, noisy: Components[Tensor], prompts: GraphPrompts, time: Tensor
    ) -> Components[Tensor]:
        """Predict logits of x0.

        Args:
            noisy: z_t, integers: atoms [B, n], charges [B, n], bonds [B, M]; padding 0.
            prompts: sizes and conditions, B rows.
            time: t / T of each row, [B], in (0, 1].

        Returns:
            [B, n, K], [B, n, K], [B, M, K]; logits of padding are arbitrary.
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
        # Nodes [B, n, D], pairs [B, M, E]; values of the whole graph (time, size, conditions, cycles) are [B, Y].
        nodes = self.atom_embedding(noisy.atoms.long()) + self.charge_embedding(
            noisy.charges.long()
        )
        at_nodes, of_graph = structure_features(
            noisy.bonds, prompts.nodes, self.classes.bonds, dtype
        )
        nodes = nodes + self.node_features(at_nodes)
        told = [time[:, None], prompts.sizes[:, None].to(dtype).log(), prompts.conditions, of_graph]
        whole = self.whole(torch.cat([part.to(dtype) for part in told], dim=-1))  # [B, Y]
        return GraphState(nodes, self.pair_embedding(noisy.bonds.long()), whole)


class Head(nn.Module):
    """A head from rows to logits."""

    def __init__(self, width: int, global_width: int, classes: int) -> None:
        super().__init__()
        self.forward_part = FeedForward(width, global_width)
        self.logits = nn.Linear(width, classes)

    def forward(self, rows: Tensor, whole: Tensor) -> Tensor:
        """Compute [B, N, K] from rows [B, N, D]."""
        logits: Tensor = self.logits(self.forward_part(rows, whole))
        return logits
