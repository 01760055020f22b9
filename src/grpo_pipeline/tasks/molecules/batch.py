"""Hold a batch of prompts with the molecules behind them, and the outcomes of the sampled graphs."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.tasks.molecules.diffusion.noise import GraphNoise
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_entries import entries_of, pair_index
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts, make_prompts
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData

# Seed of the noise of batches that are not trained on: always the same noise.
FIXED_NOISE = 0


@dataclass(frozen=True)
class MoleculeBatch:
    """P prompts, and P noised molecules, from which x0 is to be predicted.

    Attributes:
        rows: row numbers in the data, int64 [P] or [P, G].
        prompts: sizes and conditions.
        clean: x0, int64: atoms [P, n], charges [P, n], bonds [P, M].
        noisy: z_t, likewise.
        times: t of the noise, int64 [P], 1..T.
        targets: for each prompt the properties that it names, as texts; they are the references of the user's rewards.
    """

    rows: Tensor
    prompts: GraphPrompts
    clean: Components[Tensor]
    noisy: Components[Tensor]
    times: Tensor
    targets: PerPrompt


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of the samples of P prompts.

    Attributes:
        molecules: of each prompt its G decoded graphs; empty where nothing was drawn.
        rewards: of each prompt a ``RewardShare``; empty where nothing was drawn.
    """

    molecules: PerPrompt
    rewards: PerPrompt


def make_batch(
    data: MoleculeData,
    rows: np.ndarray,
    *,
    noise: GraphNoise,
    nodes: int,
    device: torch.device,
    generator: Generator | None = None,
) -> MoleculeBatch:
    """Build the batch of these rows.

    Args:
        data: the molecules and their conditions.
        rows: int64 [P].
        noise: noise of the policy, on the CPU.
        nodes: width to which the graphs are padded.
        device: device of the tensors.
        generator: draws times and noise for training, on the CPU. None takes a fixed generator.
    """
    source = torch.Generator().manual_seed(FIXED_NOISE) if generator is None else generator
    graphs = data.examples.graphs(rows).padded_to(nodes)
    conditions, clean = data.conditions[torch.as_tensor(rows)], entries_of(graphs)
    prompts = make_prompts(graphs.sizes, nodes, conditions)
    times = torch.randint(1, noise.steps + 1, (len(rows),), generator=source)  # of 1..T
    noisy = noise.corrupt(clean, times, prompts.masks, generator=source)
    return MoleculeBatch(
        rows=torch.as_tensor(rows, dtype=torch.int64).to(device),
        prompts=prompts.to(device),
        clean=clean.each(lambda part: part.to(device)),
        noisy=noisy.each(lambda part: part.to(device)),
        times=times.to(device),
        targets=target_texts(data, rows),
    )


def target_texts(data: MoleculeData, rows: np.ndarray) -> PerPrompt:
    """Write the properties that the prompt of each row names."""
    return PerPrompt(tuple(f"{value:.6g}" for value in values) for values in data.targets[rows])


def nothing_sampled(prompts: GraphPrompts, group_size: int) -> Trajectories:
    """Build G trajectories without a step for each prompt: the samples of an arm that learns from molecules alone."""
    shape, device = (len(prompts.sizes), group_size), prompts.sizes.device
    actions = torch.zeros(*shape, 0, dtype=torch.int64, device=device)  # [P, G, 0]
    nodes = torch.zeros(*shape, 1, prompts.nodes, dtype=torch.uint8, device=device)  # [P, G, 1, n]
    pairs = nodes.new_zeros(*shape, 1, pair_index(prompts.nodes).shape[1])  # [P, G, 1, M]
    return Trajectories(
        actions=actions,
        logprobs=torch.zeros(*shape, 0, device=device),
        is_valid=torch.zeros_like(actions, dtype=torch.bool),
        atoms=nodes,
        charges=nodes.clone(),
        bonds=pairs,
        sizes=prompts.sizes,
        conditions=prompts.conditions,
    )
