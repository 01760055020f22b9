"""Convert training frames: texts to tensors, which a checkpoint holds, samples to rewards, and all frames to a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.rewards.group_rewards import RewardFailedError
from grpo_pipeline.tasks.sample_rewards import measure

WIDTH = 512  # bytes of a text that are kept


def text_tensor(texts: Sequence[str]) -> Tensor:
    """Encode texts in UTF-8, uint8 [n, WIDTH]: longer ones are cut, shorter ones filled up with zeros."""
    rows = [text.encode()[:WIDTH].ljust(WIDTH, b"\0") for text in texts]
    return torch.tensor([list(row) for row in rows], dtype=torch.uint8).reshape(-1, WIDTH)


def texts_of(codes: np.ndarray) -> list[str]:
    """Decode the rows of ``text_tensor``, uint8 [n, WIDTH]; a letter that was cut in two is left out."""
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in codes]


def shown_rewards(task: Any, policy: Any, batch: Any, rollouts: Rollouts) -> Tensor:
    """Measure the rewards of shown samples, float64 [P, G]; NaN if that fails, because no training depends on them."""
    try:
        return measure(task, policy, batch, rollouts).total.double().cpu()
    except RewardFailedError:
        return torch.full(rollouts.actions.shape[:2], torch.nan, dtype=torch.float64)


def frame_table(frames: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Tabulate the numbers and texts of a training's frames, a row per moment and example; pictures are left out.

    Args:
        frames: ``step`` [f] and the arrays of ``Task.training_frame``, stacked [f, m, ...].

    Returns:
        Columns ``step``, ``example`` (0, 1, ...) and a column per array that holds a number or a text of each example. Without
        such an array, no column.
    """
    columns = {
        name: values.reshape(-1) if values.ndim == 2 else texts_of(values.reshape(-1, WIDTH))
        for name, values in frames.items()
        if values.ndim == 2 or _holds_texts(values)
    }
    if not columns:
        return pd.DataFrame()
    steps = frames["step"]
    examples = len(next(iter(columns.values()))) // len(steps)
    places = {
        "step": np.repeat(steps, examples),
        "example": np.tile(np.arange(examples), len(steps)),
    }
    return pd.DataFrame(places | columns)


def _holds_texts(values: np.ndarray) -> bool:
    return values.ndim == 3 and values.dtype == np.uint8 and values.shape[-1] == WIDTH
