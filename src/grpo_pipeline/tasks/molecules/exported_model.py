"""Read an exported molecule model from its folder alone: the denoiser, its noise, vocabulary and prompt settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from grpo_pipeline.core.storage.weights import load_weights, without_deleted
from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy, build_policy
from grpo_pipeline.tasks.molecules.diffusion.params import (
    DELETED,
    DenoiserParams,
    NoiseParams,
    TrajectoryParams,
)
from grpo_pipeline.tasks.molecules.diffusion.trajectories import graphs_at
from grpo_pipeline.tasks.molecules.diffusion.trajectory_sampling import sample_trajectories
from grpo_pipeline.tasks.molecules.graphs.components import NAMES, Components
from grpo_pipeline.tasks.molecules.graphs.decoding import Decoded, decode
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import make_prompts
from grpo_pipeline.tasks.molecules.graphs.property_scales import PropertyScales
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary, read_vocabulary
from grpo_pipeline.tasks.molecules.params import GraphPromptParams, SamplingParams


@dataclass(frozen=True)
class ExportedDenoiser:
    """A trained denoiser with its files, ready to draw molecules.

    Attributes:
        policy: denoiser and noise with the arm's weights, on the CPU.
        vocabulary: meaning of its classes.
        nodes: n, the largest number of atoms.
        trajectory: how graphs are drawn.
        sampling: number of graphs that are drawn at once.
        scales: scales of the properties that a prompt names, in the prompt's order; empty without properties.
    """

    policy: GraphPolicy
    vocabulary: Vocabulary
    nodes: int
    trajectory: TrajectoryParams
    sampling: SamplingParams
    scales: PropertyScales


def read_exported(folder: Path) -> ExportedDenoiser:
    """Read a model that an arm of the molecule task has left.

    Raises:
        FileNotFoundError: if nothing is there.
        CorruptFolderError: if a file is missing or damaged.
        ValueError: if the model is another task's, or of a version that did not say how its properties are scaled.
    """
    weights = load_weights(folder)
    config = weights.config
    if config.get("task") != "molecules":
        raise ValueError(
            f"{folder} must hold a model of the molecule task, got {config.get('task')!r}; name another folder"
        )
    sections = {name: without_deleted(config[name], gone) for name, gone in DELETED.items()}
    prompt = GraphPromptParams.model_validate(sections["prompt"])
    scales = PropertyScales.from_json(config.get("scales", {}))
    if scales.names != prompt.conditions:
        raise ValueError(
            f"{folder} must hold the scales of {list(prompt.conditions)}, got {list(scales.names)}; train again"
        )
    limits = Components(*(weights.tensors[f"noise.{name}.limit"] for name in NAMES))
    policy = build_policy(
        limits,
        NoiseParams.model_validate(sections["noise"]),
        DenoiserParams.model_validate(sections["denoiser"]),
        conditions=len(prompt.conditions),
        seed=0,
    )
    policy.load_state_dict(dict(weights.tensors))
    return ExportedDenoiser(
        policy.eval(),
        read_vocabulary(config["vocabulary"]),
        int(config["nodes"]),
        TrajectoryParams.model_validate(config["trajectory"]),
        SamplingParams.model_validate(sections["sampling"]),
        scales,
    )


@torch.no_grad()
def draw_molecules(
    model: ExportedDenoiser,
    sizes: Sequence[int],
    *,
    generator: torch.Generator,
    targets: Mapping[str, Sequence[float]] | None = None,
    temperature: float = 1.0,
) -> list[Decoded]:
    """Draw a molecule for each size.

    Args:
        model: result of ``read_exported``.
        sizes: numbers of heavy atoms, each between 1 and ``model.nodes``.
        generator: on the CPU, the only source of randomness.
        targets: property -> wanted value for each size, in the property's own unit, if the model's prompts name properties.
        temperature: divides the logits; that of an evaluation is 1.

    Raises:
        ValueError: if a size is outside the range, or the targets differ from the properties that prompts name.
    """
    wanted = model.scales.apply({} if targets is None else targets, rows=len(sizes))  # [P, F]
    prompts = make_prompts(torch.as_tensor(sizes, dtype=torch.int64), model.nodes, wanted)
    drawn = sample_trajectories(
        model.policy,
        prompts,
        1,
        params=model.trajectory,
        temperature=temperature,
        generator=generator,
    )
    return decode(graphs_at(drawn, 0), model.vocabulary)
