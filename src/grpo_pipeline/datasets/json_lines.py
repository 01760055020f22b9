"""Store a table as JSON lines: lists stay lists, and a text such as 0012 stays a text."""

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
from kedro.io.core import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview


class JsonLinesDataset(AbstractDataset[pd.DataFrame, pd.DataFrame]):
    """Stores a table as a JSON array per row; the columns stand in the first line.

    Args:
        filepath: the file; Kedro makes a relative path in the catalogue relative to the project.
        metadata: for Kedro-Viz.
    """

    def __init__(self, *, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._path = Path(os.path.abspath(filepath))
        self.metadata = metadata

    def load(self) -> pd.DataFrame:
        """Read the table.

        Raises:
            DatasetError: if there is no such file.
        """
        if not self._path.is_file():
            raise DatasetError(
                f"{self._path} must hold a table, got nothing there; run the pipeline that writes it first"
            )
        return read_table(self._path)

    def save(self, data: pd.DataFrame) -> None:
        """Write the table; an existing file is replaced atomically."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f"{self._path.name}.partial-{os.getpid()}")
        try:
            write_table(partial, data)
            partial.replace(self._path)
        finally:
            partial.unlink(missing_ok=True)

    def preview(self, nrows: int = 20) -> TablePreview:
        """Show the first rows in Kedro-Viz."""
        return TablePreview(self.load().head(nrows).to_dict(orient="split"))

    def _exists(self) -> bool:
        return self._path.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._path)}


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write the list of columns and then a JSON array per row."""
    rows = [list(table.columns), *table.to_dict(orient="records")]
    path.write_text(
        "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8"
    )


def read_table(path: Path) -> pd.DataFrame:
    """Read a table that ``write_table`` wrote."""
    columns, *rows = (
        json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line
    )
    return pd.DataFrame(rows, columns=columns)
