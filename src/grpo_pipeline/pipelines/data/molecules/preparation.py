"""Preparation of the molecule task: the data with conditions, and the task object.

RDKit is imported by the nodes that need it: the registry opens without it.
"""

from typing import Any

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.tasks.molecules.data.examples import MoleculeExamples
from grpo_pipeline.tasks.molecules.diffusion.params import (
    DenoiserParams,
    Diffusion,
    NoiseParams,
    TrajectoryParams,
    X0LossParams,
)
from grpo_pipeline.tasks.molecules.params import (
    GraphPromptParams,
    MoleculeRewardParams,
    SamplingParams,
)
from grpo_pipeline.tasks.shared import require

DIFFUSION = ("noise", "denoiser", "trajectory", "supervised_loss")


def attach_conditions(prompt: GraphPromptParams, examples: MoleculeExamples) -> Any:
    """Put the properties that prompts name beside the molecules; refuses molecules that there is no room for.

    Raises:
        ModuleNotFoundError: if RDKit is not installed.
    """
    require("rdkit", extra="molecules")
    from grpo_pipeline.tasks.molecules import batch

    return batch.attach_conditions(examples, prompt)


def join_diffusion(
    noise: NoiseParams,
    denoiser: DenoiserParams,
    trajectory: TrajectoryParams,
    supervised_loss: X0LossParams,
) -> Diffusion:
    """Bundle what belongs together."""
    return Diffusion(noise, denoiser, trajectory, supervised_loss)


def build_task(
    prompt: GraphPromptParams,
    rewards: MoleculeRewardParams,
    sampling: SamplingParams,
    training: TrainingParams,
    diffusion: Diffusion,
    data: Any,
) -> Any:
    """Put the task together, with fresh weights; refuses what does not go together."""
    from grpo_pipeline.tasks.molecules import build

    return build.build_task(diffusion, prompt, rewards, sampling, data, execution=training)


def create_pipeline() -> Pipeline:
    """Wire ``molecules.examples`` -> ``molecules.data`` and ``molecules.untrained_task``."""
    sections = [
        f"params:molecules.{name}" for name in ("prompt", "rewards", "sampling", "training")
    ]
    return Pipeline(
        [
            Node(
                attach_conditions,
                ["params:molecules.prompt", "molecules.examples"],
                "molecules.data",
                name="attach_conditions",
                namespace="molecules.data",
            ),
            Node(
                join_diffusion,
                [f"params:molecules.{name}" for name in DIFFUSION],
                "molecules.diffusion",
                name="join_diffusion",
                namespace="molecules.data",
            ),
            Node(
                build_task,
                [*sections, "molecules.diffusion", "molecules.data"],
                "molecules.untrained_task",
                name="build_task",
                namespace="molecules.data",
            ),
        ],
        tags="molecules",
    )
