"""Read a trained model of any task back from the folder that an arm has written."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from torch import nn

from grpo_pipeline.core.storage.replacement import find_complete
from grpo_pipeline.core.storage.tensor_folder import read_header
from grpo_pipeline.core.storage.weights import HEADER
from grpo_pipeline.tasks import TASKS


class Exported(Protocol):
    """A trained model, ready to use. Its task adds methods such as predict, reply or draw."""

    @property
    def policy(self) -> nn.Module:
        """The policy with the trained weights, in evaluation mode."""
        ...


def load_exported(folder: Path) -> Any:
    """Read a model, ``data/06_models/<task>/<arm>/model/<version>/model``, without its run and configuration.

    Every task has a module ``exported`` with a function ``read_exported``. ``attention`` returns a ``Predictor``, ``dialogue`` an
    ``ExportedModel``, ``molecules`` an ``ExportedDenoiser``; each is an ``Exported``.

    Raises:
        FileNotFoundError: if the folder is missing.
        CorruptFolderError: if a file is missing or damaged.
        ValueError: if the model belongs to no task of this project, or lacks values that are needed to use it alone.
    """
    found = find_complete(folder)
    if found is None or not (found / HEADER).is_file():
        raise FileNotFoundError(
            f"{folder} must hold {HEADER}, got nothing there; name the folder of one version of a model"
        )
    task = str(read_header(found / HEADER).get("config", {}).get("task"))
    module = exported_module(task)
    if module is None:
        raise ValueError(
            f"{folder} must hold a model of a task of this project, got {task!r}; name another folder"
        )
    return module.read_exported(found)


def exported_module(task: str) -> ModuleType | None:
    """Import the module ``exported`` of a task; None if the task is unknown or has no such module."""
    package = TASKS.get(task, "").rpartition(".")[0]
    name = f"{package}.exported"
    return import_module(name) if package and find_spec(name) else None
