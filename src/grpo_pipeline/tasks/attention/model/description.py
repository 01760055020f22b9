"""Describe a model so that it can be built again, and what decides its weights, so that a checkpoint can be compared.

``task`` is an ``AttentionTask``, which imports this file.
"""

import hashlib
from typing import Any

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.core.storage.weights import digest_of_tensors
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.clinical import fit_statistics
from grpo_pipeline.tasks.attention.model.encoder.pretrained import fingerprint_of
from grpo_pipeline.tasks.attention.model.model import AttentionModel


def describe(task: Any, policy: AttentionModel) -> dict[str, Any]:
    """Return the model's parameters, image size, preprocessing and clinical columns, and the architecture of a checkpoint."""
    described: dict[str, Any] = {
        "task": task.name,
        "image_size": task.image_size,
        "model": task.model.model_dump(),
    }
    described |= {} if task.clinical is None else {"clinical_columns": list(task.clinical.columns)}
    described |= {} if task.classes is None else {"classes": task.classes.model_dump(mode="json")}
    described |= (
        {}
        if task.preprocessing is None
        else {"preprocessing": task.preprocessing.model_dump(mode="json")}
    )
    return (
        described
        if task.model.checkpoint is None
        else described | {"sam_config": policy.sam.net.config.to_dict()}
    )


def fingerprint(task: Any, data: AttentionData, *, draws: bool = True) -> dict[str, Any]:
    """Return model, rewards, losses and the digests of the examples and of the checkpoint's content.

    Raises:
        ValueError: if the clinical columns are normalised by other rows than the training rows of the data.
    """
    sections = {"model": task.model, "supervised_loss": task.supervised} | (
        {"reward": task.rewards} if draws else {}
    )
    digest = hashlib.sha256("".join(data.examples.table["split"]).encode()).hexdigest()
    dumped = {name: decisive(section, without=["checkpoint"]) for name, section in sections.items()}
    checkpoint = (
        {}
        if task.model.checkpoint is None
        else {"checkpoint": fingerprint_of(task.model.checkpoint)}
    )
    if task.augmentation is not None:
        dumped["augmentation"] = decisive(task.augmentation)
    if task.start is not None:
        dumped["start"] = {"weights": digest_of_tensors(task.start.tensors)}
    if task.classes is not None:
        dumped["classes"] = decisive(task.classes)
    return (
        dumped
        | {"examples": data.examples.digest, "split": digest}
        | checkpoint
        | _clinical_fingerprint(task, data)
    )


def _clinical_fingerprint(task: Any, data: AttentionData) -> dict[str, Any]:
    if task.clinical is None:
        return {}
    if task.clinical != fit_statistics(data.examples.table, task.clinical.columns):
        raise ValueError(
            "the clinical columns must be normalised by the training rows of the data, got a task that was built for "
            "another split; build the task with build_task from these examples"
        )
    return {"clinical_columns": list(task.clinical.columns)}
