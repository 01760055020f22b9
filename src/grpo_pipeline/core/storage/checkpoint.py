"""Write and read the whole state of a training as safetensors and JSON; a new checkpoint replaces the last one atomically.

Format 3 adds a check sum over the header, the parameters in clear and the version of the code, and leaves out a reference that
never moves. The formats before it have no such sum: an edited step or learning rate would be believed, so they are refused.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo_pipeline.core.agreement import digest_of
from grpo_pipeline.core.storage.checkpoint_bounds import check_bounds, check_kinds
from grpo_pipeline.core.storage.replacement import find_complete, replacing_folder
from grpo_pipeline.core.storage.tensor_folder import (
    SEAL,
    CorruptFolderError,
    read_header,
    read_tensors,
    write_tensors,
)
from grpo_pipeline.core.training.replay_buffer import ReplayState

HEADER = "checkpoint.json"

FORMAT = 3

DAMAGED = "it is damaged or edited: remove its folder and train anew, or put back a copy"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, read, or does not fit the run."""


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on bit-identically.

    Attributes:
        policy: tensors of the policy by name, on the CPU.
        optimizer: "tensors" ("<parameter>:<entry>" -> tensor), "scalars" (parameter -> entry -> number) and "groups"
            (settings of each parameter group, with the names of its parameters).
        reference: tensors of a reference policy that moves, or None.
        frozen_reference: digest of a reference policy that never moves, which is built again from the start; or None.
        rng: every random stream, as ``core.rng.capture_rng`` returns it.
        progress: "step", "epoch", "seed" and what the loop adds (position in the data order).
        parameters: nested JSON values that a run must agree on to go on, see ``core.agreement``.
        code: name -> version of what wrote it.
        extra: free text by name; a hook keeps the tracking run's id here.
        replay: content of the replay buffer, or None.
        coefficients: numbers that training adapts, by name.
        frames: "<step>/<name>" -> what a few examples looked like to the policy after so many steps, for an animation.
        best: tensors of the policy at its best validation; empty where that is now, or none was kept.
        folder: where it was read; "" before it was written.
    """

    policy: Mapping[str, Tensor] = field(repr=False)
    optimizer: Mapping[str, Any] = field(repr=False)
    reference: Mapping[str, Tensor] | None = field(repr=False)
    rng: Mapping[str, Any] = field(repr=False)
    progress: Mapping[str, Any]
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)
    extra: MutableMapping[str, str] = field(default_factory=dict)
    replay: ReplayState | None = field(default=None, repr=False)
    coefficients: Mapping[str, float] = field(default_factory=dict)
    frozen_reference: str | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    frames: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    best: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    folder: str = ""

    @property
    def config_digest(self) -> str:
        """Digest of the parameters."""
        return digest_of(self.parameters)


@dataclass(frozen=True)
class NoCheckpoint:
    """Stands for a checkpoint that has not been written yet.

    Attributes:
        folder: where it would be.
    """

    folder: str


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint so that ``folder`` holds the old or the new one at every moment, whole.

    Raises:
        CheckpointError: if the disk refuses it; the checkpoint that was there is intact and nothing half-written is left.
    """
    replay = checkpoint.replay
    parts = {
        "policy": checkpoint.policy,
        "optimizer": checkpoint.optimizer["tensors"],
        "reference": checkpoint.reference,
    }
    parts["replay"] = None if replay is None else replay.tensors
    parts["frames"], parts["best"] = checkpoint.frames or None, checkpoint.best or None
    header = {
        "format": FORMAT,
        "progress": dict(checkpoint.progress),
        "parameters": dict(checkpoint.parameters),
        "code": dict(checkpoint.code),
        "frozen_reference": checkpoint.frozen_reference,
        "extra": dict(checkpoint.extra),
        "optimizer": {key: checkpoint.optimizer[key] for key in ("scalars", "groups")},
        "rng": dict(checkpoint.rng),
        "replay": None if replay is None else dict(replay.scalars),
        "coefficients": dict(checkpoint.coefficients),
    }
    try:
        with replacing_folder(folder) as partial:
            write_tensors(
                partial,
                {name: part for name, part in parts.items() if part is not None},
                HEADER,
                header,
            )
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {folder} must be writable, got {error}; free some space or choose another folder "
            "(the earlier checkpoint is intact)"
        ) from error


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read the last complete checkpoint.

    Raises:
        FileNotFoundError: if there is none.
        CheckpointError: if it is damaged, edited or of another format.
    """
    try:
        found = _complete(folder)
        header = _read_checked(found)
        tensors, _ = read_tensors(found, HEADER)
        return Checkpoint(
            policy=tensors["policy"],
            optimizer={"tensors": tensors["optimizer"], **header["optimizer"]},
            reference=tensors.get("reference"),
            rng=header["rng"],
            progress=header["progress"],
            parameters=header["parameters"],
            extra=header["extra"],
            replay=None
            if header["replay"] is None
            else ReplayState(tensors["replay"], header["replay"]),
            coefficients=header["coefficients"],
            frozen_reference=header["frozen_reference"],
            code=header["code"],
            frames=tensors.get("frames", {}),
            best=tensors.get("best", {}),
            folder=str(folder),
        )
    except (CorruptFolderError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, error) from error


def load_progress(folder: Path) -> dict[str, Any]:
    """Read the counters of the last complete checkpoint without its tensors; raises as ``load_checkpoint`` does."""
    try:
        return dict(_read_checked(_complete(folder))["progress"])
    except (CorruptFolderError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, error) from error


def has_checkpoint(folder: Path) -> bool:
    """Say whether a complete checkpoint is there."""
    return find_complete(folder) is not None


def _complete(folder: Path) -> Path:
    found = find_complete(folder)
    if found is None:
        raise FileNotFoundError(
            f"checkpoint {folder} must exist, got nothing there; run without resume first"
        )
    return found


def _read_checked(found: Path) -> dict[str, Any]:
    """Read the header; refuses another format, a header that was changed, and numbers outside their bounds."""
    header = read_header(found / HEADER)
    if (written := header.get("format")) != FORMAT:
        older = ", an earlier one without a check sum" if written in (1, 2) else ""
        raise CheckpointError(
            f"checkpoint {found} must be of format {FORMAT}, got {written}{older}; go on with the version that wrote it, or "
            "remove the folder to train anew"
        )
    if SEAL not in header:
        raise CorruptFolderError(f"{found / HEADER} must hold a check sum of its own, got none")
    try:
        check_kinds(header)
        check_bounds(header)
    except ValueError as error:
        raise CorruptFolderError(f"{found / HEADER}: {error}") from error
    return header


def _damaged(folder: Path, error: Exception) -> CheckpointError:
    what = (
        str(error)
        if isinstance(error, CorruptFolderError)
        else f"{folder / HEADER} must be complete, got no usable {error}"
    )
    return CheckpointError(
        f"{what}; the checkpoint is damaged or edited: remove {folder} and train anew, or put back a copy"
    )
