"""What a checkpoint of the molecule task must agree on to be gone on with."""

from typing import TYPE_CHECKING, Any

from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData
from grpo_pipeline.tasks.weights_digest import digest_of_weights

if TYPE_CHECKING:
    from grpo_pipeline.tasks.molecules.task import MoleculeTask


def fingerprint(task: "MoleculeTask", data: MoleculeData) -> dict[str, Any]:
    """Return model, objective, start and data, as JSON-able values.

    Left out: where rewards are measured (``pool``), and how many steps or graphs are worked on at a time.
    """
    return {
        "prompt": task.prompt.model_dump(mode="json"),
        "noise": task.noise.model_dump(mode="json"),
        "denoiser": task.denoiser.model_dump(mode="json"),
        "trajectory": task.trajectory.model_dump(mode="json", exclude={"steps_per_chunk"}),
        "rewards": task.rewards.model_dump(mode="json", exclude={"pool"}),
        "reward_functions": {name: measure.digest for name, measure in task.rewards.measures.items()},
        "supervised_loss": task.supervised.model_dump(mode="json"),
        "sampling": task.sampling.model_dump(mode="json", exclude={"graphs_at_once"}),
        "examples": data.examples.digest,
        "start": None if task.start is None else digest_of_weights(task.start),
    }
