"""Draw pictures of an arm's training, from its start to its end."""

from collections.abc import Mapping
from pkgutil import resolve_name

import numpy as np

from grpo_pipeline.tasks import TASKS, find_task

# Number of pictures of an arm's training, from start to end; drawing each takes a tenth of a second.
MOST_PICTURES = 5


def draw_frames(frames: Mapping[str, np.ndarray], *, task: str, arm: str) -> dict[int, np.ndarray]:
    """Draw a few frames of a training in the way of its task: step -> picture; empty for a task without pictures."""
    drawing = find_task(task).pictures if task in TASKS else ""
    if not drawing:
        return {}
    count = len(frames["step"])
    places = np.unique(np.linspace(0, count - 1, min(count, MOST_PICTURES)).round().astype(int))
    few = {name: values[places] for name, values in frames.items()}
    drawn = resolve_name(drawing)(few, arm=arm)
    return dict(zip(few["step"].tolist(), drawn, strict=True))
