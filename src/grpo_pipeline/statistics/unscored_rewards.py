"""Count for each reward of the user's what samples of a row it was asked about, and how many of them it gave no value."""

from collections.abc import Mapping

import numpy as np

# Of each reward of the user's: how many samples of the row it was asked about, and how many of them it gave no value.
ASKED, UNSCORED = "asked_", "unscored_"


def unscored_columns(parts: Mapping[str, np.ndarray], asked: np.ndarray) -> dict[str, np.ndarray]:
    """Return what rewards left without a value, as columns of prediction rows.

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
