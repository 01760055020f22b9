"""Find the trained models below a folder, by arm; each is read on request."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpo_pipeline.core.storage.content_digest import content_digest
from grpo_pipeline.core.storage.replacement import find_complete
from grpo_pipeline.core.storage.tensor_folder import CorruptFolderError
from grpo_pipeline.core.storage.weights import HEADER, ModelWeights, load_weights

REGISTERED = "models:/"  # begins the address of a model in a registry
# The models of an arm by the last part of their dataset's name: the last weights, and those of the best validation.
KINDS = ("model", "best")


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


def model_name(arm: str, kind: str) -> str:
    """Name a model: ``grpo``, or ``grpo.best`` for the weights of its best validation."""
    return arm if kind == KINDS[0] else f"{arm}.{kind}"


@dataclass(frozen=True)
class TrainedArms:
    """Models as ``<folder>/<arm>/model/``, or in versions of it, ``<folder>/<arm>/model/<version>/model/``; ``best`` likewise.

    Attributes:
        folder: the task's folder of models.
        last: name (``model_name``) -> the model of its last finished run. None where no run has recorded it; the newest version
            counts then.
        fetch: model registry's address (``models:/<name>@<alias>``) -> folder of the model; None without a registry.
    """

    folder: Path
    last: Mapping[str, LastModel] | None = None
    fetch: Callable[[str], Path] | None = None

    def newest(self) -> dict[str, Path]:
        """Map name (``model_name``) -> folder of its model from its last finished run, whatever its date."""
        folders = sorted(path for path in self.folder.glob("*/*") if path.name in KINDS)
        found = {model_name(path.parent.name, path.name): path for path in folders if path.is_dir()}
        versions = {name: self._last_version(name, path) for name, path in found.items()}
        return {name: path for name, path in versions.items() if path is not None}

    def find(self, arm: str, *, parameter: str) -> Path:
        """Find the folder of a model: of an arm from its last finished run, by its path, or by the registry's address.

        Raises:
            FileNotFoundError: if there is none; the sentence names ``parameter``, the folder and the arms that are there.
            CorruptFolderError: if it is not the one that this run has saved.
        """
        if arm.startswith(REGISTERED) and self.fetch is not None:
            return self.fetch(arm)
        if "/" in arm and not arm.startswith(REGISTERED):
            return model_in(Path(arm))
        arms = self.newest()
        if arm not in arms:
            there = (
                f"it has {sorted(arms)}; choose one of them or train"
                if arms
                else "there is no model at all; train"
            )
            raise FileNotFoundError(
                f"{parameter} must name an arm with a trained model in {self.folder}, got {arm!r} and {there} it first: "
                "grpo run with the same --env"
            )
        last = None if self.last is None else self.last[arm]
        if last is not None and (found := content_digest(arms[arm])) != last.digest:
            raise CorruptFolderError(
                f"{arms[arm]} must be the model that run {last.run} saved, with digest {last.digest}, got {found}; something "
                "else has written there: train again"
            )
        return arms[arm]

    def load(self, arm: str, *, parameter: str) -> ModelWeights:
        """Read an arm's model; raises as ``find`` does, and ``CorruptFolderError`` for a damaged folder."""
        return load_weights(self.find(arm, parameter=parameter))

    def _last_version(self, name: str, folder: Path) -> Path | None:
        if self.last is None:
            return folder if (folder / HEADER).is_file() else next(versions(folder), None)
        last = self.last.get(name)
        found = None if last is None else find_complete(folder / last.version / folder.name)
        return found if found is not None and (found / HEADER).is_file() else None


def model_in(folder: Path) -> Path:
    """Find the model in a folder: of an arm, of its model, or of one version; the newest complete version counts.

    Raises:
        FileNotFoundError: if there is none.
    """
    for place in (folder, folder / KINDS[0]):
        found = find_complete(place)
        if found is not None and (found / HEADER).is_file():
            return found
        newest = next(versions(place), None) if place.is_dir() else None
        if newest is not None:
            return newest
    raise FileNotFoundError(
        f"{folder} must hold a trained model, got none; name the folder of an arm, such as data/06_models/<task>/<arm>"
    )


def versions(folder: Path) -> Iterator[Path]:
    """Yield the complete versions of a model, the newest first."""
    for version in sorted(folder.iterdir(), reverse=True):
        found = find_complete(version / folder.name) if version.is_dir() else None
        if found is not None and (found / HEADER).is_file():
            yield found


def version_of(path: Path) -> str:
    """Find the version of a model's folder; its own name if it has none."""
    return path.parent.name if path.parent.parent.name == path.name else path.name
