"""What a checkpoint of the dialogue task must agree on to be gone on with."""

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from grpo_pipeline.core.weights import ModelWeights
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.folder_digest import digest_of_folder
from grpo_pipeline.tasks.dialogue.reader_params import FolderReaderParams, NewReaderParams

if TYPE_CHECKING:
    from grpo_pipeline.tasks.dialogue.task import DialogueTask


def fingerprint(task: "DialogueTask", data: DialogueData) -> dict[str, Any]:
    """Return model, objective, start and data, as JSON-able values.

    Left out: where a folder lies, how rewards are measured (``pool``), and how many tokens are scored at a time.
    """
    return {
        "reader": _reader(task.reader),
        "prompt": task.prompt.model_dump(mode="json"),
        "replies": task.replies.model_dump(mode="json", exclude={"tokens_per_batch"}),
        "rewards": task.rewards.model_dump(mode="json", exclude={"pool"}),
        "reward_functions": {name: measure.digest for name, measure in task.rewards.measures.items()},
        "supervised_loss": task.supervised.model_dump(mode="json"),
        "examples": data.examples.digest,
        "start": None if task.start is None else digest_of_weights(task.start),
    }


def digest_of_weights(weights: ModelWeights) -> str:
    """Return the SHA-256 of the names and bits of weights."""
    digest = hashlib.sha256()
    for name in sorted(weights.tensors):
        digest.update(f"{name}\0".encode())
        digest.update(weights.tensors[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _reader(params: NewReaderParams | FolderReaderParams) -> dict[str, Any]:
    dumped = params.model_dump(mode="json", exclude={"path"})
    return dumped | ({"content": digest_of_folder(params.path)} if isinstance(params, FolderReaderParams) else {})
