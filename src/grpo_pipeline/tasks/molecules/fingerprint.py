"""List the settings on which a checkpoint of the molecule task and the run that resumes it must agree."""

from typing import TYPE_CHECKING, Any

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.core.storage.weights import digest_of_tensors
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData

if TYPE_CHECKING:
    from grpo_pipeline.tasks.molecules.task import MoleculeTask


def fingerprint(task: "MoleculeTask", data: MoleculeData, *, draws: bool = True) -> dict[str, Any]:
    """Describe model, objective, initial weights and data as JSON-able values.

    Left out: what only says how it is executed. Where no graphs are drawn, neither their rewards nor how they are drawn decide
    anything.
    """
    shared = {
        "prompt": decisive(task.prompt),
        "noise": decisive(task.noise),
        "denoiser": decisive(task.denoiser),
        "supervised_loss": decisive(task.supervised),
        "examples": data.examples.digest,
        "start": None if task.start is None else digest_of_tensors(task.start.tensors),
    }
    if not draws:
        return shared
    return shared | {
        "trajectory": decisive(task.trajectory),
        "reward": decisive(task.rewards),
        "reward_pool": {"failure": task.pool.failure},
        "reward_functions": {
            name: measure.digest for name, measure in task.rewards.measures.items()
        },
        "sampling": decisive(task.sampling),
    }
