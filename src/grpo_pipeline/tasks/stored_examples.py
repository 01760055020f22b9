"""Define how examples of a task are stored in a folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a process that measures rewards imports this module and needs neither
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Stored:
    """The parts of a task's examples that are stored in a folder.

    A class of examples has ``stored() -> Stored`` and a class method ``restored(Stored)``, which raises ValueError if the parts
    differ from those that were saved. A class whose chunks are saved before the digest is known also has ``digest_of(Stored)``.

    Attributes:
        tables: name -> table; ``table`` has a row per example.
        arrays: name -> array with a row per example of the chunk.
        meta: JSON-able values, among them the ``digest`` of all parts.
        start: row of the table that owns the first row of the arrays.
        is_last: whether this is the last chunk.
    """

    tables: "Mapping[str, pd.DataFrame]"
    arrays: "Mapping[str, np.ndarray]"
    meta: Mapping[str, Any]
    start: int = 0
    is_last: bool = True
