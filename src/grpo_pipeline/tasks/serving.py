"""Define how models answer requests, one table after the other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_pipeline.tasks.exported import exported_module


@dataclass(frozen=True)
class Column:
    """A column of a request or of its answer.

    Attributes:
        name: of the column.
        type: ``string``, ``double`` or ``boolean``; each ``[]`` behind it makes it a list of these.
        is_required: whether it must be there and hold a value.
    """

    name: str
    type: str
    is_required: bool = False


@dataclass(frozen=True)
class Serving:
    """How exported models of a task answer requests: ``SERVING`` of its module ``exported``, where it has one.

    Attributes:
        load: makes the model of the folder that an arm has written.
        answer: (model, table, options by keyword) -> table; raises ValueError for a request that cannot be answered.
        inputs: columns of a request to the model with this description.
        outputs: columns of an answer of the model with this description.
        options: name -> default of what a request may ask for.
        example: makes a request, of no patient and no person.
        needs: what a model's description must say, so that it can be used alone.
        requirements: libraries that a server installs.
        optional: libraries that it needs for some requests alone.
    """

    load: Callable[[Path], Any]
    answer: Callable[..., pd.DataFrame]
    inputs: Callable[[Mapping[str, Any]], Sequence[Column]]
    outputs: Callable[[Mapping[str, Any]], Sequence[Column]]
    options: Mapping[str, int | bool]
    example: Callable[[], pd.DataFrame]
    needs: frozenset[str]
    requirements: Sequence[str]
    optional: Sequence[str] = ()


def serving_of(task: str) -> Serving | None:
    """Return how models of a task answer requests, None where they do not."""
    return getattr(exported_module(task), "SERVING", None)
