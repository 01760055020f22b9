"""The trained models below a folder, by arm; read when they are asked for."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo_pipeline.core.atomic import find_complete
from grpo_pipeline.core.weights import HEADER, ModelWeights, load_weights


@dataclass(frozen=True)
class TrainedArms:
    """Models as ``<folder>/<arm>/model/``, or in versions of it, ``<folder>/<arm>/model/<version>/model/``."""

    folder: Path

    def newest(self) -> dict[str, Path]:
        """Return arm -> folder of its newest model."""
        folders = sorted(path for path in self.folder.glob("*/model") if path.is_dir())
        found = {path.parent.name: newest_version(path) for path in folders}
        return {arm: path for arm, path in found.items() if path is not None}

    def find(self, arm: str, *, parameter: str) -> Path:
        """Return the folder of an arm's newest model.

        Raises:
            FileNotFoundError: if there is none; the sentence names ``parameter``, the folder and the arms that are there.
        """
        arms = self.newest()
        if arm not in arms:
            there = f"it has {sorted(arms)}; choose one of them or train" if arms else "there is no model at all; train"
            raise FileNotFoundError(
                f"{parameter} must name an arm with a trained model in {self.folder}, got {arm!r} and {there} it first: "
                "kedro run with the same --env"
            )
        return arms[arm]

    def load(self, arm: str, *, parameter: str) -> ModelWeights:
        """Read an arm's newest model; raises as ``find`` does, and ``CorruptFolderError`` for a damaged one."""
        return load_weights(self.find(arm, parameter=parameter))


def newest_version(folder: Path) -> Path | None:
    """Return the newest complete model in a folder ``model``: versions sort by their time."""
    if (folder / HEADER).is_file():
        return folder
    return next(versions(folder), None)


def versions(folder: Path) -> Iterator[Path]:
    """Yield the complete versions of a model, the newest first."""
    for version in sorted(folder.iterdir(), reverse=True):
        found = find_complete(version / folder.name) if version.is_dir() else None
        if found is not None and (found / HEADER).is_file():
            yield found


def version_of(path: Path) -> str:
    """Return the version of a model's folder, its own name where it has none."""
    return path.parent.name if path.parent.parent.name == path.name else path.name
