"""Build the molecule task from parameters and data, and refuse settings that could not be trained."""

from collections.abc import Iterable
from dataclasses import replace

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import ExecutionParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.core.training.device import choose_device
from grpo_pipeline.core.training.precision import set_float32_products
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.rewards.rehearsal import TRIED, try_rewards
from grpo_pipeline.tasks.molecules.algorithm_checks import check_algorithm
from grpo_pipeline.tasks.molecules.batch import target_texts
from grpo_pipeline.tasks.molecules.diffusion.noise import GraphNoise, limits_of
from grpo_pipeline.tasks.molecules.diffusion.params import Diffusion, TrajectoryParams, check_steps
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData
from grpo_pipeline.tasks.molecules.params import GraphPromptParams, SamplingParams
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward
from grpo_pipeline.tasks.molecules.task import MoleculeTask
from grpo_pipeline.tasks.plain_execution import check_plain


def build_task(
    diffusion: Diffusion,
    prompt: GraphPromptParams,
    rewards: MoleculeReward,
    reward_pool: PoolParams,
    sampling: SamplingParams,
    data: MoleculeData,
    *,
    execution: ExecutionParams | None = None,
) -> MoleculeTask:
    """Build the task with fresh initial weights; without ``execution``, on the GPU if there is one.

    If there are user-defined rewards, processes are started and the rewards are tried.

    Raises:
        ValueError: if an update scores more steps than there are, or the step asks for an option that the denoiser lacks.
        RewardFailedError, RewardPoolError: as ``try_own_rewards``.
    """
    if execution is not None:
        check_plain(execution, task="molecules")
        set_float32_products(execution.float32_products)
    check_steps(diffusion.noise, diffusion.trajectory)
    vocabulary, examples = data.examples.vocabulary, data.examples
    classes = Components(len(vocabulary.atoms), len(vocabulary.charges), len(vocabulary.bonds))
    limits = limits_of(diffusion.noise, examples.graphs(examples.rows("train")), classes)
    task = MoleculeTask(
        prompt=prompt,
        noise=diffusion.noise,
        denoiser=diffusion.denoiser,
        trajectory=diffusion.trajectory,
        rewards=rewards,
        supervised=diffusion.supervised,
        sampling=sampling,
        device=choose_device("auto" if execution is None else execution.device),
        vocabulary=vocabulary,
        nodes=vocabulary.max_atoms,
        limits=limits,
        known=examples.known(),
        diffusion=GraphNoise(limits, diffusion.noise),
        scales=data.scales,
        pool=RewardPool(reward_pool),
    )
    try_own_rewards(task, data)
    return task


def try_own_rewards(task: MoleculeTask, data: MoleculeData) -> None:
    """Call the user-defined rewards on a few training molecules; raises as ``try_rewards``."""
    rows = data.examples.rows("train")[:TRIED]
    smiles = list(data.examples.table["smiles"].iloc[rows])
    try_rewards(
        task.rewards.own_measures,
        task.pool,
        subjects=smiles,
        references=target_texts(data, rows),
        task=task.name,
    )


def check_arms(
    task: MoleculeTask, arms: Iterable[tuple[AlgorithmParams, TrajectoryParams]]
) -> MoleculeTask:
    """Check that the task can train all arms before the first begins; raises as its two checks do."""
    for algorithm, trajectory in arms:
        check_steps(task.noise, trajectory)
        check_algorithm(algorithm, trajectory)
    return task


def start_from(task: MoleculeTask, model: ModelWeights) -> MoleculeTask:
    """Give the task these initial weights; it shares the pool of processes."""
    return replace(task, start=model)
