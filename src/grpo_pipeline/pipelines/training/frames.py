"""Read the frames of a training out of its checkpoint."""

import numpy as np

from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.pipelines.training.export import checkpoint_of_model


def develop(checkpoint: Checkpoint | NoCheckpoint) -> dict[str, np.ndarray]:
    """Return the frames of a training, stacked: ``step`` int64 [f] and each array [f, ...]; nothing where none were taken."""
    frames = checkpoint_of_model(checkpoint).frames
    steps = sorted({key.partition("/")[0] for key in frames})
    names = sorted({key.partition("/")[2] for key in frames})
    if not steps:
        return {}
    stacked = {
        name: np.stack([frames[f"{step}/{name}"].numpy() for step in steps]) for name in names
    }
    return {"step": np.array([int(step) for step in steps]), **stacked}
