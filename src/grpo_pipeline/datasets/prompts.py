"""Read a user's table of new prompts: CSV, or a JSON object per line."""

import json
import os
from pathlib import Path
from typing import Any, Never

import pandas as pd
from kedro.io.core import AbstractDataset, DatasetError

from grpo_pipeline.tasks.text_lines import HEAD, find_separator


class PromptsDataset(AbstractDataset[Never, pd.DataFrame]):
    """Reads a table of prompts: ``.csv`` with a header, else JSON lines, whose first may be the list of the columns.

    Args:
        filepath: the file; Kedro makes a relative path in the catalogue relative to the project.
        parameter: that names it, for messages.
        metadata: for Kedro-Viz.
    """

    def __init__(
        self, *, filepath: str, parameter: str, metadata: dict[str, Any] | None = None
    ) -> None:
        self._path = Path(os.path.abspath(filepath))
        self._parameter = parameter
        self.metadata = metadata

    def load(self) -> pd.DataFrame:
        """Read the rows; cells of a CSV file are texts, "" if they are empty.

        Raises:
            DatasetError: if there is no such file, or a line of it is not right.
        """
        if not self._path.is_file():
            raise DatasetError(
                f"{self._parameter} must name a file of prompts, got {self._path}, which is not there; name another"
            )
        try:
            text = self._path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise DatasetError(f"{self._path} must be UTF-8, got {error}; save it again") from error
        try:
            if self._path.suffix.lower() == ".csv":
                table = pd.read_csv(
                    self._path,
                    sep=find_separator(self._path.read_bytes()[:HEAD], str(self._path)),
                    dtype=str,
                    keep_default_na=False,
                    encoding="utf-8-sig",
                )
            else:
                table = read_lines(text)
        except ValueError as error:  # also of pandas' parser
            raise DatasetError(f"{self._path}: {error}") from error
        if table.empty:
            raise DatasetError(f"{self._path} must hold prompts, got none; add a row")
        return table

    def save(self, data: Never) -> None:
        """Refuse: the file is the user's."""
        raise DatasetError(f"{self._path} must not be written; it is the user's file")

    def _exists(self) -> bool:
        return self._path.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._path)}


def read_lines(text: str) -> pd.DataFrame:
    """Read a table from JSON lines.

    Raises:
        ValueError: naming the first line that is no JSON object, counted from 1.
    """
    rows: list[dict[str, Any]] = []
    columns: list[str] | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} must be JSON, got {error}; correct it") from error
        if isinstance(row, list) and columns is None and not rows:
            columns = row
        elif isinstance(row, dict):
            rows.append(row)
        else:
            raise ValueError(
                f'line {number} must be an object such as {{"question": "…"}}, got {line[:40]}; correct it'
            )
    return pd.DataFrame(rows, columns=columns, dtype=object)
