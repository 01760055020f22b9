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
    """A trained model, ready to use; what it can do beside that is its task's: predict, reply, draw."""

    @property
    def policy(self) -> nn.Module:
        """The policy with the trained weights, in evaluation mode."""
        ...


def load_exported(folder: Path) -> Any:
    """Read a model, ``data/06_models/<task>/<arm>/model/<version>/model``, without the run that made it and its configuration.

    Every task has a module ``exported`` whose function ``read_exported`` does it: with ``attention`` a ``Predictor``, with
    ``dialogue`` an ``ExportedModel``, with ``molecules`` an ``ExportedDenoiser``; each is an ``Exported``.

    Raises:
        FileNotFoundError: if nothing is there.
        CorruptFolderError: if a file is missing or damaged.
        ValueError: if no task of this project knows such a model, or it lacks what is needed to use it alone.
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
    """Return the module ``exported`` of a task's package; None where there is no such task, or it has none."""
    package = TASKS.get(task, "").rpartition(".")[0]
    name = f"{package}.exported"
    return import_module(name) if package and find_spec(name) else None
