"""Count, for each user-defined reward, the samples that it was asked to score and those that it left without a value."""

from collections.abc import Mapping

import numpy as np

# Per user-defined reward: the number of samples of the row to be scored, and of those left without a value.
ASKED, UNSCORED = "asked_", "unscored_"


def unscored_columns(parts: Mapping[str, np.ndarray], asked: np.ndarray) -> dict[str, np.ndarray]:
    """Count the samples that rewards left without a value, as columns of prediction rows.

    Args:
        parts: name -> values [rows, samples], NaN where there is none.
        asked: bool [rows, samples], True for a sample that was to be scored.

    Returns:
        ``asked_<part>`` and ``unscored_<part>``, int64 [rows].
    """
    columns = {f"{ASKED}{name}": asked.sum(axis=1) for name in parts}
    return columns | {
        f"{UNSCORED}{name}": (np.isnan(values) & asked).sum(axis=1)
        for name, values in parts.items()
    }
