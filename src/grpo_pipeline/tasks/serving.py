"""Define how exported models answer requests: a table in, a table out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_pipeline.tasks.exported import exported_module


@dataclass(frozen=True)
class Column:
    """A column of a request or of its answer.

    Attributes:
        name: name of the column.
        type: ``string``, ``double`` or ``boolean``; each ``[]`` behind it makes it a list of these.
        is_required: whether a request must have it, with a value.
    """

    name: str
    type: str
    is_required: bool = False


@dataclass(frozen=True)
class Serving:
    """How exported models of a task answer requests: ``SERVING`` of its module ``exported``, if the task has it.

    Attributes:
        load: reads the model from the folder that an arm has written.
        answer: (model, table, options by keyword) -> table; raises ValueError for an invalid request.
        inputs: columns of a request to the model with this description.
        outputs: columns of an answer of the model with this description.
        options: name -> default of the options of a request.
        example: makes a request with made-up data.
        needs: fields of a model's description without which it cannot be used alone.
        requirements: libraries that a server installs.
        optional: libraries that only some requests need.
        line: column whose text alone makes a line of a file, as SMILES do; empty if there is none. Answers then have a column
            ``row``, the number of their row.
        reason: column that says why an answer has no such text.
        files: column -> endings of the files that its cells name; a folder of such files is a request. Empty for none.
        names: description of a model -> the column of its training's data for each column of a request that is called otherwise
            there.
        draws: (number, sizes) -> a request for so many samples, spread evenly over the sizes; None if answers need more than a
            size.
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
    line: str = ""
    reason: str = ""
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    names: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda config: {}
    draws: Callable[[int, Sequence[int]], pd.DataFrame] | None = None

    def required(self, config: Mapping[str, Any]) -> str:
        """Name the first column that a request must have as the data of the training do."""
        first = next(column.name for column in self.inputs(config) if column.is_required)
        return self.names(config).get(first, first)

    def asked(self, config: Mapping[str, Any]) -> list[Column]:
        """List the columns of a request; one that the data of the training name otherwise has both names, neither required."""
        names = self.names(config)
        return [
            one
            for column in self.inputs(config)
            for one in (
                [Column(names[column.name], column.type), replace(column, is_required=False)]
                if column.name in names
                else [column]
            )
        ]

    def request(self, table: pd.DataFrame, config: Mapping[str, Any]) -> pd.DataFrame:
        """Name the columns of a table as the task does; one that has that name already stays."""
        theirs = {own: name for name, own in self.names(config).items() if name not in table}
        return table.rename(columns=theirs)


def serving_of(task: str) -> Serving | None:
    """Find how models of a task answer requests; None if they do not."""
    return getattr(exported_module(task), "SERVING", None)
