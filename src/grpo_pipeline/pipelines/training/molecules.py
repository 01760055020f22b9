"""What the molecule task adds in front of its arms: data with conditions, the task object, and the start that all arms share."""

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.weights import ModelWeights
from grpo_pipeline.pipelines.training.pipeline import create_stage
from grpo_pipeline.tasks.molecules import build, molecule_data
from grpo_pipeline.tasks.molecules.diffusion_params import DenoiserParams, NoiseParams, TrajectoryParams, X0LossParams
from grpo_pipeline.tasks.molecules.examples import MoleculeExamples
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData
from grpo_pipeline.tasks.molecules.reward_params import MoleculeRewardParams
from grpo_pipeline.tasks.molecules.task import MoleculeTask
from grpo_pipeline.tasks.molecules.task_params import GraphPromptParams, SamplingParams

DIFFUSION = ("noise", "denoiser", "trajectory", "supervised_loss")
STAGE, EAGER = "warm_start", "eager"
ARMS = ("supervised", "grpo", EAGER)
# What an arm has for itself beside its algorithm; the others share it.
OWN = {EAGER: ("task", "training")}


def attach_conditions(prompt: GraphPromptParams, examples: MoleculeExamples) -> MoleculeData:
    """Put the properties that prompts name beside the molecules; refuses molecules that there is no room for."""
    return molecule_data.attach_conditions(examples, prompt)


def join_diffusion(
    noise: NoiseParams, denoiser: DenoiserParams, trajectory: TrajectoryParams, supervised_loss: X0LossParams
) -> build.Diffusion:
    """Bundle what belongs together."""
    return build.Diffusion(noise, denoiser, trajectory, supervised_loss)


def build_task(
    prompt: GraphPromptParams,
    rewards: MoleculeRewardParams,
    sampling: SamplingParams,
    training: TrainingParams,
    diffusion: build.Diffusion,
    data: MoleculeData,
) -> MoleculeTask:
    """Put the task together, with fresh weights; refuses what does not go together."""
    return build.build_task(diffusion, prompt, rewards, sampling, data, execution=training)


def check_arms(
    warm_start: AlgorithmParams,
    supervised: AlgorithmParams,
    grpo: AlgorithmParams,
    eager: AlgorithmParams,
    trajectory: TrajectoryParams,
    task: MoleculeTask,
) -> MoleculeTask:
    """Hand the task on once every arm asks for what it has: before the first stage is trained, not after it."""
    shared = [(algorithm, task.trajectory) for algorithm in (warm_start, supervised, grpo)]
    build.check_arms(task, [*shared, (eager, trajectory)])
    return task


def start_arms(task: MoleculeTask, model: ModelWeights) -> MoleculeTask:
    """Return the task whose policies begin with the warm start's weights."""
    return build.start_from(task, model)


def take_trajectory(trajectory: TrajectoryParams, task: MoleculeTask) -> MoleculeTask:
    """Return the task as an arm with trajectories of its own draws and scores it."""
    return build.with_trajectory(task, trajectory)


def create_pipeline() -> Pipeline:
    """Wire ``molecules.examples`` -> ``molecules.task``, ``molecules.eager.task`` and ``molecules.data``; trains the warm start."""
    algorithms = [f"params:molecules.{arm}.algorithm" for arm in (STAGE, *ARMS)]
    sections = [f"params:molecules.{name}" for name in ("prompt", "rewards", "sampling", "training")]
    eager = f"params:molecules.{EAGER}.trajectory"
    prepare = Pipeline(
        [
            Node(
                attach_conditions,
                ["params:molecules.prompt", "molecules.examples"],
                "molecules.data",
                name="attach_conditions",
            ),
            Node(join_diffusion, [f"params:molecules.{name}" for name in DIFFUSION], "molecules.diffusion", name="join_diffusion"),
            Node(
                build_task,
                [*sections, "molecules.diffusion", "molecules.data"],
                "molecules.untrained_task",
                name="build_task",
            ),
            Node(
                check_arms, [*algorithms, eager, "molecules.untrained_task"], f"molecules.{STAGE}.task", name="check_arms"
            ),
            # They stand between two stages: without a namespace Kedro warns that these are torn apart.
            Node(
                start_arms,
                [f"molecules.{STAGE}.task", f"molecules.{STAGE}.model"],
                "molecules.task",
                name="start_arms",
                namespace="molecules",
            ),
            Node(
                take_trajectory, [eager, "molecules.task"], f"molecules.{EAGER}.task", name="take_trajectory", namespace="molecules"
            ),
        ],
        tags="molecules",
    )
    return prepare + create_stage("molecules", STAGE)
