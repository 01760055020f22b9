"""Read a trained model back, of whichever task, from the folder that an arm has left."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from grpo_pipeline.core.atomic import find_complete
from grpo_pipeline.core.tensorfiles import read_header
from grpo_pipeline.core.weights import HEADER


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
        raise FileNotFoundError(f"{folder} must hold {HEADER}, got nothing there; name the folder of one version of a model")
    task = str(read_header(found / HEADER).get("config", {}).get("task"))
    package = __package__ or ""
    if not task.isidentifier() or find_spec(f"{package}.{task}") is None:
        raise ValueError(f"{folder} must hold a model of a task of this project, got {task!r}; name another folder")
    return import_module(f"{package}.{task}.exported").read_exported(found)
