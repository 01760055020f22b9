"""Take frames of a training: how a few validation examples look to the policy on the way."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.tasks.base import Task

FRAME_ROWS = 6


class Film:
    """The frames of one arm's training: how a few validation examples look to the policy, from the start to the end.

    There are at most ``animation_frames`` of them, evenly spaced, the first before the first step and the last at the end. A
    checkpoint holds the frames until then, so that a resumed run has those before it.
    """

    def __init__(
        self,
        task: Task,
        data: Any,
        training: TrainingParams,
        state: TrainState,
        before: Mapping[str, Tensor],
    ) -> None:
        """Take the first frame; of a run that goes on, begin with the frames ``before``."""
        self.frames = dict(before)
        self._task, self._data = task, data
        # From the end, so that a single frame shows what was trained.
        moments = np.linspace(state.total_steps, 0, training.animation_frames)
        self._moments = {int(moment) for moment in moments}
        rows = task.rows(data, "val")
        order = numpy_generator(state.generator_seed, Stream.FRAME_ROWS).permutation(rows)
        self._rows = np.sort(order[:FRAME_ROWS])
        if state.step == 0:
            self.take(state)

    @torch.no_grad()
    def take(self, state: TrainState) -> None:
        """Take a frame, if it is time for one; every global random stream stays as it was."""
        if state.step not in self._moments or not len(self._rows):
            return
        places = {parameter.device for parameter in state.policy.parameters()}
        with torch.random.fork_rng([place for place in places if place.type == "cuda"]):
            frame = self._task.training_frame(
                state.policy, self._data, self._rows, seed=state.generator_seed
            )
        self.frames |= {f"{state.step:09d}/{name}": shown for name, shown in frame.items()}
