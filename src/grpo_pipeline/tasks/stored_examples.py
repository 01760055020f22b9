"""Define how examples of a task are stored in a folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a process that measures rewards imports this module and needs neither
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Stored:
    """Examples of a task as they are kept in a folder.

    A class of examples has ``stored() -> Stored`` and a class method ``restored(Stored)``, which raises ValueError where the
    parts are not what was saved; one whose chunks are saved before the digest is known has ``digest_of(Stored)`` as well.

    Attributes:
        tables: by name; ``table`` has a row per example.
        arrays: by name; each has a row per example, of a chunk fewer.
        meta: what JSON can hold, among it the ``digest`` of all of it.
        start: row of the table that owns the first row of the arrays.
        is_last: whether they end with the last one.
    """

    tables: "Mapping[str, pd.DataFrame]"
    arrays: "Mapping[str, np.ndarray]"
    meta: Mapping[str, Any]
    start: int = 0
    is_last: bool = True
