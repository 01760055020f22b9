"""Store training metrics during training: JSON lines, appended, resumable.

JSON lines are used instead of CSV: an append costs only the new rows, with any columns. A line cut short by a kill is recognised.
"""

import json
import logging
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from kedro.io import AbstractDataset, DatasetError
from kedro_datasets._typing import PlotlyPreview

logger = logging.getLogger(__name__)

LEADING = ("step", "epoch", "split")
MAX_PREVIEW_CURVES = 40

Row = dict[str, Any]


class MetricStreamDataset(AbstractDataset[Sequence[Mapping[str, Any]], pd.DataFrame]):
    """Rows of metrics, a JSON object per line; each save appends, a load gives a table.

    The first save of a run keeps the rows on disk before its first step and drops the others. So a fresh run starts the file
    anew, and a resumed run drops the rows that it will write again. A value of NaN or None means "not measured" and is left out.
    A line cut short by a kill is dropped.

    Example:
        ``{type: grpo_pipeline.datasets.metric_stream.MetricStreamDataset, filepath: data/07_model_output/grpo/metrics.jsonl}``
    """

    in_place = True  # rows reach the disk while training runs

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        """Name the file.

        Args:
            filepath: the file of JSON lines.
            metadata: free, for Kedro-Viz.
        """
        self._filepath = Path(filepath)
        self._going_on = False
        self.metadata = metadata

    def save(self, data: Sequence[Mapping[str, Any]]) -> None:
        """Append rows; each needs an integer ``step``. No rows (or False) write nothing."""
        if not data:
            return
        lines = [_encode(row, path=self._filepath) for row in data]
        if not self._going_on:
            # Rewrite the file with the rows whose step is below the first of these, atomically.
            path, step = self._filepath, min(int(row["step"]) for row in data)
            path.parent.mkdir(parents=True, exist_ok=True)
            before = _read(path) if path.is_file() and step > 0 else []
            self._say_gaps({row["step"] for row in before}, step)
            kept = [json.dumps(row) + "\n" for row in before if row["step"] < step]
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            draft.write_text("".join(kept), encoding="utf-8")
            draft.replace(path)
            self._going_on = True
        with self._filepath.open("a", encoding="utf-8") as file:
            file.write("".join(lines))

    def _say_gaps(self, held: Collection[int], step: int) -> None:
        """Warn of a file that was cut or removed since: training continues, but the curve lacks those steps."""
        if gone := sorted(set(range(step)) - set(held)):
            logger.warning(
                "%s must hold the steps before %d, with which training goes on, got none for %s; put back the file, or the curve "
                "stays without them",
                self._filepath,
                step,
                _few(gone),
            )

    def load(self) -> pd.DataFrame:
        """Read all rows as a table: ``step``, ``epoch``, ``split``, then the metrics in order of appearance; empty is NaN."""
        if not self._filepath.is_file():
            raise DatasetError(f"{self._filepath} must exist, got no file; train first")
        rows = _read(self._filepath)
        names = dict.fromkeys(name for row in rows for name in row)
        leading = [name for name in LEADING if name in names]
        return pd.DataFrame(rows, columns=leading + [name for name in names if name not in LEADING])

    def preview(self) -> PlotlyPreview:
        """Show the training curves in Kedro-Viz: the first curve, and the others on a click in the legend."""
        return PlotlyPreview(plotly_curves(self.load() if self._exists() else pd.DataFrame()))

    def _exists(self) -> bool:
        return self._filepath.is_file()

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}


def plotly_curves(table: pd.DataFrame) -> dict[str, Any]:
    """Describe each metric over the steps as a Plotly figure for Kedro-Viz: a trace per split."""
    numbers = table.select_dtypes("number").columns.difference(list(LEADING), sort=False)
    parts = list(table.groupby("split", sort=False)) if "split" in table else [("", table)]
    traces: list[dict[str, Any]] = []
    for name in numbers[:MAX_PREVIEW_CURVES]:
        for split, rows in parts:
            known = rows.dropna(subset=[name])
            if len(known):
                trace = {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": " ".join(part for part in (str(split), str(name)) if part),
                    "x": known["step"].tolist(),
                    "y": known[name].tolist(),
                    "visible": "legendonly" if traces else True,
                }
                traces.append(trace)
    layout = {"xaxis": {"title": {"text": "step"}}, "hovermode": "x unified"}
    return {"data": traces, "layout": layout}


def _encode(row: Mapping[str, Any], *, path: Path) -> str:
    """Encode a row as a single line; numpy and torch scalars become numbers."""
    plain = (
        {name: value.item() if hasattr(value, "item") else value for name, value in row.items()}
        if row
        else {}
    )
    if not isinstance(plain.get("step"), int):
        raise DatasetError(
            f"{path} must be given rows with an integer 'step', got {row!r}; add the step"
        )
    return (
        json.dumps(
            {
                name: value
                for name, value in plain.items()
                if not (value is None or (isinstance(value, float) and math.isnan(value)))
            }
        )
        + "\n"
    )


def _read(path: Path) -> list[Row]:
    """Read the rows; a last line that is cut short is dropped, any other damage raises ``DatasetError``."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return list(_parse(file.read().split("\n"), path=path))


def _parse(lines: Sequence[str], *, path: Path) -> Iterable[Row]:
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            message = f"{path} line {number} must be a JSON object, got {line[:40]!r}; remove the line or train again"
            raise DatasetError(message) from error
        if not isinstance(row, dict) or type(row.get("step")) is not int:
            raise DatasetError(
                f"{path} line {number} must be a row with an integer 'step', got {line[:40]!r}; remove the line or train again"
            )
        yield row


def _few(steps: Sequence[int]) -> str:
    """Write sorted steps in words."""
    is_run = steps[-1] - steps[0] == len(steps) - 1
    if len(steps) > 1 and is_run:
        return f"the steps {steps[0]} to {steps[-1]}"
    return f"{len(steps)} steps, the first of them {steps[0]}"
