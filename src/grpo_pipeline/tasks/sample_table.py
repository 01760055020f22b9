"""Tabulate the samples of a task that writes no table itself."""

from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from grpo_pipeline.core.types import Rollouts


def tabulate_samples(batch: Any, rollouts: Rollouts) -> pd.DataFrame:
    """Tabulate the samples: row number (place in the batch if unknown), actions, log-probability."""
    prompts, group_size, _ = rollouts.actions.shape
    rows = getattr(batch, "rows", None)
    known = rows.cpu().numpy() if isinstance(rows, Tensor) else np.arange(prompts)
    actions, is_valid = (
        rollouts.actions.flatten(0, 1).tolist(),
        rollouts.is_valid.flatten(0, 1).tolist(),
    )
    taken = [
        " ".join(str(a) for a, valid in zip(*pair, strict=True) if valid)
        for pair in zip(actions, is_valid, strict=True)
    ]
    return pd.DataFrame(
        {
            "row": known.repeat(group_size),
            "sample": np.tile(np.arange(group_size), prompts),
            "actions": taken,
            "logprob": (rollouts.logprobs * rollouts.is_valid).sum(-1).flatten().cpu().numpy(),
        }
    )
