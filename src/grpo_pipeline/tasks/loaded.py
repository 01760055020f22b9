"""Load a trained model of any task from its folder alone, and answer rows with it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_pipeline.core.storage.tensor_folder import read_header
from grpo_pipeline.core.storage.weights import HEADER
from grpo_pipeline.runs.progress_listeners import reported_to
from grpo_pipeline.tasks.serving import Serving, serving_of
from grpo_pipeline.tasks.trained_arms import model_in

AT_ONCE = 8  # rows that are answered together; no answer depends on it
ROW = re.compile(r"^row \d+ of the \w+: ")


@dataclass(frozen=True)
class Answered:
    """Answers to some rows.

    Attributes:
        answers: a row for each answer, in the order of the rows.
        refused: number of a row that has none -> reason.
    """

    answers: pd.DataFrame
    refused: Mapping[int, str]


@dataclass(frozen=True)
class LoadedModel:
    """A trained model, ready to use.

    Attributes:
        task: name of its task.
        folder: where it lies.
        config: its description.
        serving: how the task answers.
        model: what ``serving.load`` has read.
    """

    task: str
    folder: Path
    config: Mapping[str, Any] = field(repr=False)
    serving: Serving
    model: Any

    def predict(self, rows: pd.DataFrame | Sequence[Any], **options: int | bool) -> pd.DataFrame:
        """Answer rows, as ``mlflow models serve`` does, in any number.

        Args:
            rows: a table with the columns of the training's data or those of a request, a list of mappings, or a list of
                values of the column that a row must have: questions, paths of images below the current folder, sizes of
                molecules.
            options: those of the task, such as ``seed``.

        Returns:
            The answers in the order of the rows.

        Raises:
            ValueError: naming the first row that cannot be answered, counted from 0, or an unknown option.
        """
        table = self.table(rows)
        found = []
        for start in range(0, len(table), AT_ONCE):
            part = self.answer(table.iloc[start : start + AT_ONCE], options)
            if part.refused:
                number, reason = min(part.refused.items())
                raise ValueError(f"row {number}: {reason}")
            found.append(part.answers)
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame()

    def table(self, rows: pd.DataFrame | Sequence[Any]) -> pd.DataFrame:
        """Make a table of rows, numbered from 0."""
        if isinstance(rows, pd.DataFrame):
            return rows.reset_index(drop=True)
        if all(isinstance(row, Mapping) for row in rows):
            return pd.DataFrame(list(rows), dtype=object)
        return pd.DataFrame({self.required: pd.Series(list(rows), dtype=object)})

    @property
    def required(self) -> str:
        """Name of the first column that a row must have, as the data of the training call it."""
        return self.serving.required(self.config)

    def can_read(self, table: pd.DataFrame) -> bool:
        """Check whether a table has every column that a row must have, by either of its names."""
        asked = self.serving.request(table, self.config)
        return all(c.name in asked for c in self.serving.inputs(self.config) if c.is_required)

    def answer(self, part: pd.DataFrame, options: Mapping[str, int | bool]) -> Answered:
        """Answer some rows of a table; a row that is refused takes no other with it.

        Args:
            part: a slice of a table of ``table``: a row has the same answer in any slice.
            options: those of the task.

        Raises:
            ValueError: if an option is unknown, or a column is missing.
        """
        given = self.options(options)
        part = self.serving.request(part, self.config)
        with reported_to(lambda moment: None):  # loops inside an answer say nothing
            return self._answer(part, given)

    def _answer(self, part: pd.DataFrame, given: Mapping[str, int | bool]) -> Answered:
        try:
            return Answered(self.serving.answer(self.model, part, **given), {})
        except ValueError as error:
            if not ROW.match(str(error)) and len(part) == 1:
                raise
        answers, refused = [], dict[int, str]()
        for place in range(len(part)):
            row = part.iloc[place : place + 1]
            try:
                answers.append(self.serving.answer(self.model, row, **given))
            except ValueError as error:
                if not ROW.match(str(error)):
                    raise
                refused[int(part.index[place])] = ROW.sub("", str(error))
        return Answered(pd.concat(answers) if answers else pd.DataFrame(), refused)

    def options(self, given: Mapping[str, int | bool]) -> dict[str, int | bool]:
        """Complete the options of a prediction by their defaults.

        Raises:
            ValueError: if one is unknown to the task.
        """
        known = self.serving.options
        if unknown := sorted(given.keys() - known.keys()):
            raise ValueError(
                f"an option of {self.task} must be one of {', '.join(known)}, got {unknown[0]!r}; correct it"
            )
        return {name: type(default)(given.get(name, default)) for name, default in known.items()}


def load(folder: str | Path) -> LoadedModel:
    """Load a trained model of any task.

    Args:
        folder: of an arm, ``data/06_models/attention/grpo``, of its model, or of one version; the newest complete version
            counts.

    Raises:
        FileNotFoundError: if there is no model.
        CorruptFolderError: if a file is missing or damaged.
        ValueError: if its task answers no rows, or it cannot be used alone.
    """
    found = model_in(Path(folder))
    config = read_header(found / HEADER).get("config", {})
    task = str(config.get("task"))
    serving = serving_of(task)
    if serving is None:
        raise ValueError(
            f"{found} must hold a model of a task that answers rows, got {task!r}; name another folder"
        )
    if lost := sorted(serving.needs - config.keys()):
        raise ValueError(f"{found} must hold a model with {lost[0]}, got none; train again")
    return LoadedModel(task, found, config, serving, serving.load(found))
