"""Noise whole graphs: transitions of atoms, charges and bonds, and draws from them."""

import torch
from torch import Tensor, nn

from grpo_pipeline.core.sampling.truncation import sample_categorical
from grpo_pipeline.tasks.molecules.diffusion.noise_schedule import cosine_schedule
from grpo_pipeline.tasks.molecules.diffusion.params import NoiseParams
from grpo_pipeline.tasks.molecules.diffusion.transition import (
    Transition,
    marginal_limit,
    uniform_limit,
)
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_entries import entries_of
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs


class GraphNoise(nn.Module):
    """Noise of three components, each with its own limit distribution and schedule; no parameters, only buffers."""

    def __init__(self, limits: Components[Tensor], params: NoiseParams) -> None:
        """Build the tables.

        Args:
            limits: m of each component, [K], see ``limits_of``.
            params: number of steps and exponents.
        """
        super().__init__()
        exponents = params.exponents
        schedules = Components(
            *(
                cosine_schedule(params.steps, e)
                for e in (exponents.atoms, exponents.charges, exponents.bonds)
            )
        )
        self.atoms, self.charges, self.bonds = limits.each(Transition, schedules)

    @property
    def transitions(self) -> Components[Transition]:
        """The transitions of the three components."""
        return Components(self.atoms, self.charges, self.bonds)

    @property
    def classes(self) -> Components[int]:
        """K of each component."""
        return self.transitions.each(lambda transition: transition.classes)

    @property
    def steps(self) -> int:
        """T, the number of steps."""
        return self.atoms.steps

    def corrupt(
        self,
        clean: Components[Tensor],
        t: Tensor,
        masks: Components[Tensor],
        *,
        generator: torch.Generator,
    ) -> Components[Tensor]:
        """Draw z_t ~ q(z_t | x0), int64, independently for every entry; padding is 0.

        Args:
            clean: x0, int64 [B, n], [B, n], [B, M].
            t: int64 [B], 0..T.
            masks: which entries belong to the graph.
            generator: the only source of randomness, on the device of the entries.
        """
        drawn = self.transitions.each(
            lambda transition, x0: transition.corrupt(x0, t, generator=generator), clean
        )
        return drawn.each(_padded, masks)

    def draw_start(
        self, prompts: GraphPrompts, *, generator: torch.Generator
    ) -> Components[Tensor]:
        """Draw z_T from the limit distributions, int64, a graph for each row of the prompts; padding is 0."""
        masks = prompts.masks
        drawn = self.transitions.each(
            lambda transition, mask: transition.draw_limit(mask.shape, generator=generator), masks
        )
        return drawn.each(_padded, masks)

    def reverse(
        self, logits: Components[Tensor], noisy: Components[Tensor], t: Tensor
    ) -> Components[Tensor]:
        """Compute log p(z_{t-1} | z_t) of every entry, [B, N, K] each; see ``Transition.reverse``."""
        return self.transitions.each(
            lambda transition, z, noise: transition.reverse(z, noise, t), logits, noisy
        )

    def posterior(
        self, noisy: Components[Tensor], clean: Components[Tensor], t: Tensor
    ) -> Components[Tensor]:
        """Compute log q(z_{t-1} | z_t, x0) of every entry, [B, N, K] each; see ``Transition.posterior``."""
        return self.transitions.each(
            lambda transition, noise, x0: transition.posterior(noise, x0, t), noisy, clean
        )


def limits_of(
    params: NoiseParams, graphs: MoleculeGraphs, classes: Components[int]
) -> Components[Tensor]:
    """Compute the limit distributions: uniform, or the frequency of each class in the graphs.

    Args:
        params: says which.
        graphs: the training molecules.
        classes: K of each component, the sizes of the vocabularies.

    Raises:
        ValueError: if a graph holds a class that is not in the vocabulary.
    """
    if params.limit == "uniform":
        return classes.each(uniform_limit)
    return count_classes(graphs, classes).each(marginal_limit)


def count_classes(graphs: MoleculeGraphs, classes: Components[int]) -> Components[Tensor]:
    """Count the classes of all nodes and of all pairs of nodes, each once and without padding: float64 [K] each.

    Raises:
        ValueError: if a class is not in the vocabulary (names the component).
    """
    masks = GraphPrompts(
        graphs.sizes, graphs.sizes.new_zeros(len(graphs), 0), graphs.atoms.shape[1]
    ).masks
    found = entries_of(graphs).each(lambda entry, mask: entry[mask], masks)  # [entries]
    for name, entries, known in zip(("atoms", "charges", "bonds"), found, classes, strict=True):
        if len(entries) and int(entries.max()) >= known:
            raise ValueError(
                f"{name} must be classes below {known}, got {int(entries.max())}; widen the vocabulary of {name}"
            )
    return found.each(
        lambda entries, known: torch.bincount(entries, minlength=known).double(), classes
    )


@torch.no_grad()
def draw_entries(
    log_probs: Components[Tensor], masks: Components[Tensor], *, generator: torch.Generator
) -> Components[Tensor]:
    """Draw every entry independently from its categorical, int64 [B, N] each; padding is 0.

    By ``truncation.sample_categorical``, with noise of its own for every row, entry and class. A bond is one entry: it is
    drawn once, not once per direction.

    Args:
        log_probs: [B, N, K] each.
        masks: which entries belong to the graph.
        generator: the only source of randomness, on the device of the log-probabilities.
    """

    def draw(scores: Tensor, mask: Tensor) -> Tensor:
        return _padded(sample_categorical(scores, generator=generator), mask)

    return log_probs.each(draw, masks)


def _padded(entries: Tensor, mask: Tensor) -> Tensor:
    return entries.masked_fill(~mask, 0)
