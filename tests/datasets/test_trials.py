import dataclasses
import json

import pandas as pd
import pytest
import torch
from kedro.io import DataCatalog
from kedro.io.core import DatasetError

from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.datasets.trials import TrialsDataset
from grpo_pipeline.pipelines.experiments.trials.records import TrialHeader, TrialRecord

HEADER = TrialHeader(
    "grpo.seed0", "attention", "grpo", 0, None, "finished", 1.5, "abc", {"training": {"epochs": 1}}, {"auroc": 0.5}
)
ROWS = pd.DataFrame({"core_id": ["0012", "NA"], "patient_id": ["1", "2"], "center": ["NA", "b"], "prob": [0.25, 0.5]})
METRICS = [{"step": 0, "split": "train", "reward/mean": 0.5}, {"step": 0, "split": "val", "reward/mean": 0.25}]


def test_a_cell_comes_back_as_it_was_saved(tmp_path):
    dataset = TrialsDataset(str(tmp_path / "trials"))
    weights = ModelWeights({"a": torch.arange(3.0)}, {"task": "attention"})
    dataset.save(TrialRecord(HEADER, ROWS, METRICS, weights))
    found = dataset.load()
    assert found.headers == {"grpo.seed0": HEADER}
    pd.testing.assert_frame_equal(found.predictions("grpo.seed0"), ROWS)
    assert found.metric_rows("grpo.seed0")["reward/mean"].tolist() == [0.5, 0.25]
    assert torch.equal(found.weights("grpo.seed0").tensors["a"], torch.arange(3.0))
    assert sorted(path.name for path in (tmp_path / "trials" / "grpo.seed0").iterdir()) == [
        "metrics.jsonl", "predictions.csv", "text_columns.json", "trial.json", "weights",
    ]  # fmt: skip


def test_one_folder_under_two_names_that_is_empty_at_first(tmp_path):
    entry = {"type": "grpo_pipeline.datasets.trials.TrialsDataset", "filepath": str(tmp_path / "trials")}
    catalog = DataCatalog.from_config({"before": entry, "trials": entry})
    assert catalog.load("before").headers == {}
    catalog.save("trials", False)
    assert not catalog.exists("before")
    catalog.save("trials", TrialRecord(HEADER, ROWS, METRICS))
    assert catalog.load("before").headers.keys() == {"grpo.seed0"}


def test_a_cell_that_is_run_again_replaces_all_of_the_old_one(tmp_path):
    dataset = TrialsDataset(str(tmp_path / "trials"))
    dataset.save(TrialRecord(HEADER, ROWS, METRICS))
    lost = TrialHeader(
        "grpo.seed0", "attention", "grpo", 0, None, "failed", 0.5, "abd", {}, reason="loss must be finite, got nan"
    )
    dataset.save(TrialRecord(lost, traceback="Traceback"))
    assert dataset.load().headers == {"grpo.seed0": lost}
    assert sorted(path.name for path in (tmp_path / "trials" / "grpo.seed0").iterdir()) == ["traceback.txt", "trial.json"]
    with pytest.raises(DatasetError, match=r"trial grpo\.seed0 must hold predictions\.csv in .*; train the trial again"):
        dataset.load().predictions("grpo.seed0")


def test_a_kill_in_the_middle_leaves_the_old_trial(tmp_path, monkeypatch):
    dataset = TrialsDataset(str(tmp_path / "trials"))
    dataset.save(TrialRecord(HEADER, ROWS, METRICS))
    monkeypatch.setattr(pd.DataFrame, "to_csv", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        dataset.save(TrialRecord(HEADER, ROWS.iloc[:1], METRICS))
    assert len(dataset.load().predictions("grpo.seed0")) == 2
    assert [path.name for path in (tmp_path / "trials").iterdir()] == ["grpo.seed0"]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    dataset = TrialsDataset(str(tmp_path / "trials"))
    dataset.save(TrialRecord(HEADER, ROWS, METRICS))
    (tmp_path / "trials" / "grpo.seed0").rename(tmp_path / "trials" / "grpo.seed0.previous")
    (tmp_path / "trials" / "grpo.seed0.partial-1").mkdir()
    assert dataset.load().headers == {"grpo.seed0": HEADER}
    assert len(dataset.load().predictions("grpo.seed0")) == 2


def test_a_damaged_header_is_a_dataset_error_with_the_remedy(tmp_path):
    dataset = TrialsDataset(str(tmp_path / "trials"))
    dataset.save(TrialRecord(HEADER, ROWS, METRICS))
    path = tmp_path / "trials" / "grpo.seed0" / "trial.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": 1}))
    with pytest.raises(DatasetError, match=r"trial\.json must be the header of a finished trial.*; remove the folder"):
        dataset.load()


def test_of_a_trial_that_was_replaced_the_new_one_counts(tmp_path):
    """A kill after both renames leaves the old folder beside the new one."""
    dataset, folder = TrialsDataset(str(tmp_path / "trials")), tmp_path / "trials" / "grpo.seed0"
    dataset.save(TrialRecord(dataclasses.replace(HEADER, digest="old"), ROWS, METRICS))
    folder.rename(tmp_path / "kept")
    dataset.save(TrialRecord(HEADER, ROWS, METRICS))
    (tmp_path / "kept").rename(folder.with_name("grpo.seed0.previous"))
    assert dataset.load().headers == {"grpo.seed0": HEADER}
    assert len(json.loads(json.dumps(dataset.preview()))["data"]) == 1
