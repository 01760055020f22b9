import json

import pandas as pd
import pytest
import torch
from kedro.io import DataCatalog
from kedro.io.core import DatasetError

from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.datasets.cells import CellsDataset
from grpo_pipeline.pipelines.experiments.trials.cells import CellHeader, CellRecord

HEADER = CellHeader(
    "grpo.seed0", "attention", "grpo", 0, None, "finished", 1.5, "abc", {"training": {"epochs": 1}}, {"auroc": 0.5}
)
ROWS = pd.DataFrame({"core_id": ["0012", "NA"], "patient_id": ["1", "2"], "center": ["NA", "b"], "prob": [0.25, 0.5]})
METRICS = [{"step": 0, "split": "train", "reward/mean": 0.5}, {"step": 0, "split": "val", "reward/mean": 0.25}]


def test_a_cell_comes_back_as_it_was_saved(tmp_path):
    dataset = CellsDataset(str(tmp_path / "cells"))
    weights = ModelWeights({"a": torch.arange(3.0)}, {"task": "attention"})
    dataset.save(CellRecord(HEADER, ROWS, METRICS, weights))
    found = dataset.load()
    assert found.headers == {"grpo.seed0": HEADER}
    pd.testing.assert_frame_equal(found.predictions("grpo.seed0"), ROWS)
    assert found.metric_rows("grpo.seed0")["reward/mean"].tolist() == [0.5, 0.25]
    assert torch.equal(found.weights("grpo.seed0").tensors["a"], torch.arange(3.0))
    assert sorted(path.name for path in (tmp_path / "cells" / "grpo.seed0").iterdir()) == [
        "cell.json", "metrics.jsonl", "predictions.csv", "text_columns.json", "weights",
    ]  # fmt: skip


def test_one_folder_under_two_names_that_is_empty_at_first(tmp_path):
    entry = {"type": "grpo_pipeline.datasets.cells.CellsDataset", "filepath": str(tmp_path / "cells")}
    catalog = DataCatalog.from_config({"before": entry, "cells": entry})
    assert catalog.load("before").headers == {}
    catalog.save("cells", False)
    assert not catalog.exists("before")
    catalog.save("cells", CellRecord(HEADER, ROWS, METRICS))
    assert catalog.load("before").headers.keys() == {"grpo.seed0"}


def test_a_cell_that_is_run_again_replaces_all_of_the_old_one(tmp_path):
    dataset = CellsDataset(str(tmp_path / "cells"))
    dataset.save(CellRecord(HEADER, ROWS, METRICS))
    lost = CellHeader("grpo.seed0", "attention", "grpo", 0, None, "failed", 0.5, "abd", {}, reason="loss must be finite, got nan")
    dataset.save(CellRecord(lost, traceback="Traceback"))
    assert dataset.load().headers == {"grpo.seed0": lost}
    assert sorted(path.name for path in (tmp_path / "cells" / "grpo.seed0").iterdir()) == ["cell.json", "traceback.txt"]
    with pytest.raises(DatasetError, match=r"cell grpo\.seed0 must hold predictions\.csv in .*; train the cell again"):
        dataset.load().predictions("grpo.seed0")


def test_a_kill_in_the_middle_leaves_the_old_cell(tmp_path, monkeypatch):
    dataset = CellsDataset(str(tmp_path / "cells"))
    dataset.save(CellRecord(HEADER, ROWS, METRICS))
    monkeypatch.setattr(pd.DataFrame, "to_csv", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        dataset.save(CellRecord(HEADER, ROWS.iloc[:1], METRICS))
    assert len(dataset.load().predictions("grpo.seed0")) == 2
    assert [path.name for path in (tmp_path / "cells").iterdir()] == ["grpo.seed0"]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    dataset = CellsDataset(str(tmp_path / "cells"))
    dataset.save(CellRecord(HEADER, ROWS, METRICS))
    (tmp_path / "cells" / "grpo.seed0").rename(tmp_path / "cells" / "grpo.seed0.previous")
    (tmp_path / "cells" / "grpo.seed0.partial-1").mkdir()
    assert dataset.load().headers == {"grpo.seed0": HEADER}
    assert len(dataset.load().predictions("grpo.seed0")) == 2


def test_a_damaged_header_is_a_dataset_error_with_the_remedy(tmp_path):
    dataset = CellsDataset(str(tmp_path / "cells"))
    dataset.save(CellRecord(HEADER, ROWS, METRICS))
    path = tmp_path / "cells" / "grpo.seed0" / "cell.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": 1}))
    with pytest.raises(DatasetError, match=r"cell\.json must be the header of a finished cell.*; remove the folder"):
        dataset.load()


def test_the_preview_shows_how_each_cell_ended(tmp_path):
    dataset = CellsDataset(str(tmp_path / "cells"))
    dataset.save(CellRecord(HEADER, ROWS, METRICS))
    assert dataset.preview()["data"] == [["grpo.seed0", "finished", 1.5, None]]
