"""Nodes of the molecule task that run before its arms: data with conditions, the task object, the initial policy of all arms.

RDKit is imported by the nodes that need it: the registry opens without it.
"""

from typing import Any

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.tasks.molecules.data.examples import MoleculeExamples
from grpo_pipeline.tasks.molecules.diffusion.params import DenoiserParams, Diffusion, NoiseParams, TrajectoryParams, X0LossParams
from grpo_pipeline.tasks.molecules.params import GraphPromptParams, MoleculeRewardParams, SamplingParams
from grpo_pipeline.tasks.shared import require

DIFFUSION = ("noise", "denoiser", "trajectory", "supervised_loss")
STAGE, EAGER = "warm_start", "eager"
ARMS = ("supervised", "grpo", EAGER)


def attach_conditions(prompt: GraphPromptParams, examples: MoleculeExamples) -> Any:
    """Put the properties that prompts name beside the molecules; refuses molecules that there is no room for.

    Raises:
        ModuleNotFoundError: if RDKit is not installed.
    """
    require("rdkit", extra="molecules")
    from grpo_pipeline.tasks.molecules import batch

    return batch.attach_conditions(examples, prompt)


def join_diffusion(
    noise: NoiseParams, denoiser: DenoiserParams, trajectory: TrajectoryParams, supervised_loss: X0LossParams
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


def check_arms(
    warm_start: AlgorithmParams,
    supervised: AlgorithmParams,
    grpo: AlgorithmParams,
    eager: AlgorithmParams,
    trajectory: TrajectoryParams,
    task: Any,
) -> Any:
    """Hand the task on once every arm asks for what it has: before the first stage is trained, not after it."""
    from grpo_pipeline.tasks.molecules import build

    shared = [(algorithm, task.trajectory) for algorithm in (warm_start, supervised, grpo)]
    return build.check_arms(task, [*shared, (eager, trajectory)])


def start_arms(task: Any, model: ModelWeights) -> Any:
    """Return the task whose policies begin with the warm start's weights."""
    from grpo_pipeline.tasks.molecules import build

    return build.start_from(task, model)


def take_trajectory(trajectory: TrajectoryParams, task: Any) -> Any:
    """Return the task as an arm with trajectories of its own draws and scores it."""
    from grpo_pipeline.tasks.molecules import build

    return build.with_trajectory(task, trajectory)


def create_pipeline() -> Pipeline:
    """Wire ``molecules.examples`` -> ``molecules.data`` and the tasks of the arms; ``warm_start`` is trained between them."""
    algorithms = [f"params:molecules.{arm}.algorithm" for arm in (STAGE, *ARMS)]
    sections = [f"params:molecules.{name}" for name in ("prompt", "rewards", "sampling", "training")]
    eager = f"params:molecules.{EAGER}.trajectory"
    return Pipeline(
        [
            Node(
                attach_conditions,
                ["params:molecules.prompt", "molecules.examples"],
                "molecules.data",
                name="attach_conditions",
            ),
            Node(
                join_diffusion, [f"params:molecules.{name}" for name in DIFFUSION], "molecules.diffusion", name="join_diffusion"
            ),
            Node(
                build_task,
                [*sections, "molecules.diffusion", "molecules.data"],
                "molecules.untrained_task",
                name="build_task",
            ),
            Node(check_arms, [*algorithms, eager, "molecules.untrained_task"], f"molecules.{STAGE}.task", name="check_arms"),
            # They stand between two stages: without a namespace Kedro warns that these are torn apart.
            Node(
                start_arms,
                [f"molecules.{STAGE}.task", f"molecules.{STAGE}.model"],
                "molecules.task",
                name="start_arms",
                namespace="molecules",
            ),
            Node(
                take_trajectory,
                [eager, "molecules.task"],
                f"molecules.{EAGER}.task",
                name="take_trajectory",
                namespace="molecules",
            ),
        ],
        tags="molecules",
    )
