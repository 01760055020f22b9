"""Store the trials of a grid: a folder per trial, complete or absent."""

import dataclasses
import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from kedro.io.core import AbstractDataset, DatasetError
from kedro_datasets._typing import TablePreview

from grpo_pipeline.core.storage.replacement import find_complete, replacing_folder
from grpo_pipeline.core.storage.weights import ModelWeights, load_weights, save_weights
from grpo_pipeline.datasets.metric_stream import MetricStreamDataset
from grpo_pipeline.datasets.table import escaped, restored
from grpo_pipeline.pipelines.experiments.trials.records import TrialHeader, TrialRecord

HEADER, PREDICTIONS, METRICS, WEIGHTS, TRACEBACK = (
    "trial.json",
    "predictions.csv",
    "metrics.jsonl",
    "weights",
    "traceback.txt",
)
TEXT = "text_columns.json"  # of the predictions: an id such as 0012, a center such as NA and a reply such as 1 stay text


class TrialFolder:
    """The trials below a folder: headers are read at once, rows on request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._headers = {header.key: header for header in map(read_header, trial_folders(folder))}

    @property
    def headers(self) -> Mapping[str, TrialHeader]:
        """The headers of the trials by key."""
        return self._headers

    def predictions(self, key: str) -> pd.DataFrame:
        """Read the prediction rows of a finished trial."""
        path = self._file(key, PREDICTIONS)
        names = json.loads(self._file(key, TEXT).read_text(encoding="utf-8"))
        text: dict[Hashable, type[str]] = dict.fromkeys(names, str)
        return restored(pd.read_csv(path, dtype=text, keep_default_na=False, na_values=[""]))

    def metric_rows(self, key: str) -> pd.DataFrame:
        """Read the metrics by step of a finished trial."""
        return MetricStreamDataset(str(self._file(key, METRICS))).load()

    def weights(self, key: str) -> ModelWeights:
        """Read the final weights of a trial that kept them."""
        return load_weights(self._file(key, WEIGHTS))

    def _file(self, key: str, name: str) -> Path:
        folder = find_complete(self._folder / key)
        if folder is None or not (folder / name).exists():
            raise DatasetError(
                f"trial {key} must hold {name} in {self._folder}, got nothing there; train the trial again"
            )
        return folder / name


class TrialsDataset(AbstractDataset[TrialRecord | Literal[False], TrialFolder]):
    """The trials of a grid, each in ``<folder>/<key>/``; a save adds or replaces a trial atomically.

    ``trial.json`` is the header, ``predictions.csv`` and ``metrics.jsonl`` the rows, ``weights/`` the final weights if they are
    kept, ``traceback.txt`` that of a failed trial. The same folder may stand in the catalogue under two names, to read finished
    trials and to write. So the graph has no cycle.

    Example:
        ``{type: grpo_pipeline.datasets.trials.TrialsDataset, filepath: data/07_model_output/<task>/compare/trials}``
    """

    is_keyed = True  # each trial holds the key of what it was made from

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        """Name the folder.

        Args:
            filepath: the folder above the trials.
            metadata: free, for Kedro-Viz.
        """
        self._filepath = Path(filepath)
        self.metadata = metadata

    def load(self) -> TrialFolder:
        """Read the headers of all trials; there may be none. A damaged header raises ``DatasetError``."""
        return TrialFolder(self._filepath)

    def save(self, data: TrialRecord | Literal[False]) -> None:
        """Write a trial; ``False`` means that this yield writes nothing."""
        if data is False:
            return
        with replacing_folder(self._filepath / data.header.key) as folder:
            if data.predictions is not None:
                escaped(data.predictions).to_csv(folder / PREDICTIONS, index=False)
                # The columns that hold no numbers.
                kinds = data.predictions.dtypes
                (folder / TEXT).write_text(
                    json.dumps(
                        [
                            str(name)
                            for name in data.predictions.columns
                            if not pd.api.types.is_numeric_dtype(kinds[name])
                        ]
                    ),
                    encoding="utf-8",
                )
            if data.metric_rows:
                MetricStreamDataset(str(folder / METRICS)).save(data.metric_rows)
            if data.weights is not None:
                save_weights(folder / WEIGHTS, data.weights)
            if data.traceback is not None:
                (folder / TRACEBACK).write_text(data.traceback, encoding="utf-8")
            (folder / HEADER).write_text(
                json.dumps(dataclasses.asdict(data.header), indent=1), encoding="utf-8"
            )

    def preview(self, nrows: int = 200) -> TablePreview:
        """Show how each trial ended."""
        columns = ["key", "status", "seconds", "reason"]
        rows = [
            [getattr(header, name) for name in columns] for header in self.load().headers.values()
        ][:nrows]
        return TablePreview({"index": list(range(len(rows))), "columns": columns, "data": rows})

    def _exists(self) -> bool:
        return bool(trial_folders(self._filepath))

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath)}


def trial_folders(folder: Path) -> list[Path]:
    """List the complete folders of all trials, also of a trial whose replacement was cut short."""
    if not folder.is_dir():
        return []
    keys = {
        path.name.removesuffix(".previous")
        for path in folder.iterdir()
        if path.is_dir() and ".partial-" not in path.name
    }
    return [found for key in sorted(keys) if (found := find_complete(folder / key)) is not None]


def read_header(folder: Path) -> TrialHeader:
    """Read ``trial.json`` of a trial.

    Raises:
        DatasetError: if it is missing or damaged.
    """
    path = folder / HEADER
    try:
        return TrialHeader(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(
            f"{path} must be the header of a finished trial, got {error}; remove the folder {folder}"
        ) from error
