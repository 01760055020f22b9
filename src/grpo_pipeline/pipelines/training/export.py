"""Make models of checkpoints: of the last weights and of the best ones, each with its calibration."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.tasks.base import HasFolders, KnowsInputs, Task
from grpo_pipeline.tasks.familiarity import INPUTS


def calibrate(
    seed: int, task: Task, data: Any, checkpoint: Checkpoint | NoCheckpoint
) -> dict[str, Any]:
    """Fit on the validation split how the final weights' scores become frequencies."""
    policy = task.build_policy(0)
    policy.load_state_dict(dict(checkpoint_of_model(checkpoint).policy))
    return task.calibrate(policy, data, task.rows(data, "val"), seed=seed)


def export_model(
    task: Task,
    checkpoint: Checkpoint | NoCheckpoint,
    calibration: Mapping[str, Any] | None = None,
    data: Any = None,
) -> ModelWeights:
    """Return the final weights with what is needed to build the policy again and, with a calibration, to use it alone.

    With the data, and of a task that knows them, the model also says what its training inputs looked like.
    """
    trained = checkpoint_of_model(checkpoint)
    policy = task.build_policy(0)
    policy.load_state_dict(dict(trained.policy))
    counters = {name: one for name, one in trained.progress.items() if isinstance(one, int)}
    config = task.describe(policy) | {"training": counters}
    fitted: dict[str, Any] = {} if calibration is None else {"calibration": dict(calibration)}
    if (score := trained.progress.get("validated", {})).get("step") == counters["step"]:
        fitted["validation"] = dict(score)
    beside: dict[str, Mapping[str, Tensor]] = {}
    if data is not None and isinstance(task, KnowsInputs):
        familiarity = task.describe_inputs(policy, data)
        fitted[INPUTS], beside[INPUTS] = (
            familiarity.told.model_dump(mode="json"),
            familiarity.tensors(),
        )
    return ModelWeights(
        tensors=trained.policy,
        config=config | fitted,
        beside=beside,
        folders=_folders(task, policy),
    )


def export_best(
    seed: int, task: Task, data: Any, checkpoint: Checkpoint | NoCheckpoint, model: ModelWeights
) -> ModelWeights:
    """Return the weights of the best validation, calibrated by themselves; where they are the last ones, their model."""
    last = checkpoint_of_model(checkpoint)
    best = at_best(last)
    if best.progress["step"] == last.progress["step"]:
        built = task.build_policy(0)
        built.load_state_dict(dict(model.tensors))
        return replace(model, folders=_folders(task, built))
    return export_model(task, best, calibrate(seed, task, data, best), data)


def _folders(task: Task, policy: Any) -> Mapping[str, Any]:
    return task.model_folders(policy) if isinstance(task, HasFolders) else {}


def at_best(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint as it was at its best validation, as far as a model is made of it."""
    if (score := checkpoint.progress.get("best")) is None:
        return checkpoint
    progress = {**checkpoint.progress, "step": score["step"], "validated": score}
    return replace(checkpoint, policy=checkpoint.best or checkpoint.policy, progress=progress)


def checkpoint_of_model(checkpoint: Checkpoint | NoCheckpoint) -> Checkpoint:
    """Return a checkpoint as the arm's model is made of it: the last weights, or with ``keep: best`` the best ones."""
    if isinstance(checkpoint, NoCheckpoint):
        raise ValueError(
            f"a checkpoint must be in {checkpoint.folder}, got nothing there; train the arm first"
        )
    return at_best(checkpoint) if checkpoint.progress.get("keep") == "best" else checkpoint
