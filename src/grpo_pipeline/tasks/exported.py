"""Read a trained model of any task back from the folder that an arm has written."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pandas as pd
from torch import nn

from grpo_pipeline.core.storage.content_digest import content_digest
from grpo_pipeline.core.storage.replacement import find_complete
from grpo_pipeline.core.storage.tensor_folder import CorruptFolderError, read_header
from grpo_pipeline.core.storage.weights import HEADER, ModelWeights, load_weights
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


# Models that answer requests, one table after the other.


@dataclass(frozen=True)
class Column:
    """A column of a request or of its answer.

    Attributes:
        name: of the column.
        type: ``string``, ``double`` or ``boolean``; each ``[]`` behind it makes it a list of these.
        is_required: whether it must be there and hold a value.
    """

    name: str
    type: str
    is_required: bool = False


@dataclass(frozen=True)
class Serving:
    """How exported models of a task answer requests: ``SERVING`` of its module ``exported``, where it has one.

    Attributes:
        load: makes the model of the folder that an arm has written.
        answer: (model, table, options by keyword) -> table; raises ValueError for a request that cannot be answered.
        inputs: columns of a request to the model with this description.
        outputs: columns of an answer of the model with this description.
        options: name -> default of what a request may ask for.
        example: makes a request, of no patient and no person.
        needs: what a model's description must say, so that it can be used alone.
        requirements: libraries that a server installs.
        optional: libraries that it needs for some requests alone.
    """

    load: Callable[[Path], Any]
    answer: Callable[..., pd.DataFrame]
    inputs: Callable[[Mapping[str, Any]], Sequence[Column]]
    outputs: Callable[[Mapping[str, Any]], Sequence[Column]]
    options: Mapping[str, int | bool]
    example: Callable[[], pd.DataFrame]
    needs: frozenset[str]
    requirements: Sequence[str]
    optional: Sequence[str] = ()


def serving_of(task: str) -> Serving | None:
    """Return how models of a task answer requests, None where they do not."""
    return getattr(exported_module(task), "SERVING", None)


# The trained models below a folder, by arm; read when they are asked for.


@dataclass(frozen=True)
class LastModel:
    """The description that the last finished run wrote of an arm's model.

    Attributes:
        version: name of its folder.
        digest: of its content.
        run: identity of the run.
    """

    version: str
    digest: str
    run: str


REGISTERED = "models:/"  # begins the address of a model in a registry
# The models of an arm by the last part of their dataset's name: the last weights, and those of the best validation.
KINDS = ("model", "best")


def model_name(arm: str, kind: str) -> str:
    """Return how a model is asked for: ``grpo``, and ``grpo.best`` for the weights of its best validation."""
    return arm if kind == KINDS[0] else f"{arm}.{kind}"


@dataclass(frozen=True)
class TrainedArms:
    """Models as ``<folder>/<arm>/model/``, or in versions of it, ``<folder>/<arm>/model/<version>/model/``; ``best`` likewise.

    Attributes:
        folder: the task's folder of models.
        last: name (``model_name``) -> the model of its last finished run; None where no run has written anything down: then the
            newest name counts.
        fetch: model registry's address (``models:/<name>@<alias>``) -> folder of the model; None where there is no registry.
    """

    folder: Path
    last: Mapping[str, LastModel] | None = None
    fetch: Callable[[str], Path] | None = None

    def newest(self) -> dict[str, Path]:
        """Return name (``model_name``) -> folder of its model: of its last finished run, whatever its date."""
        folders = sorted(path for path in self.folder.glob("*/*") if path.name in KINDS)
        found = {model_name(path.parent.name, path.name): path for path in folders if path.is_dir()}
        versions = {name: self._last_version(name, path) for name, path in found.items()}
        return {name: path for name, path in versions.items() if path is not None}

    def find(self, arm: str, *, parameter: str) -> Path:
        """Return the folder of an arm's model, of its last finished run; or of a model of the registry, by its address.

        Raises:
            FileNotFoundError: if there is none; the sentence names ``parameter``, the folder and the arms that are there.
            CorruptFolderError: if it is not the one that this run has saved.
        """
        if arm.startswith(REGISTERED) and self.fetch is not None:
            return self.fetch(arm)
        arms = self.newest()
        if arm not in arms:
            there = (
                f"it has {sorted(arms)}; choose one of them or train"
                if arms
                else "there is no model at all; train"
            )
            raise FileNotFoundError(
                f"{parameter} must name an arm with a trained model in {self.folder}, got {arm!r} and {there} it first: "
                ".venv/bin/kedro run with the same --env"
            )
        last = None if self.last is None else self.last[arm]
        if last is not None and (found := content_digest(arms[arm])) != last.digest:
            raise CorruptFolderError(
                f"{arms[arm]} must be the model that run {last.run} saved, with digest {last.digest}, got {found}; something "
                "else has written there: train again"
            )
        return arms[arm]

    def load(self, arm: str, *, parameter: str) -> ModelWeights:
        """Read an arm's model; raises as ``find`` does, and ``CorruptFolderError`` for a damaged one."""
        return load_weights(self.find(arm, parameter=parameter))

    def _last_version(self, name: str, folder: Path) -> Path | None:
        if self.last is None:
            return folder if (folder / HEADER).is_file() else next(versions(folder), None)
        last = self.last.get(name)
        found = None if last is None else find_complete(folder / last.version / folder.name)
        return found if found is not None and (found / HEADER).is_file() else None


def versions(folder: Path) -> Iterator[Path]:
    """Yield the complete versions of a model, the newest first."""
    for version in sorted(folder.iterdir(), reverse=True):
        found = find_complete(version / folder.name) if version.is_dir() else None
        if found is not None and (found / HEADER).is_file():
            yield found


def version_of(path: Path) -> str:
    """Return the version of a model's folder, its own name where it has none."""
    return path.parent.name if path.parent.parent.name == path.name else path.name
