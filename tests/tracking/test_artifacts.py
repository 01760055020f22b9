"""Files are found through the catalogue; secrets stay at home."""

import pandas as pd
import pytest
import yaml
from kedro.io import CachedDataset, MemoryDataset, Version
from kedro_datasets.pandas import CSVDataset

from grpo_pipeline.datasets.metric_stream import MetricStreamDataset
from grpo_pipeline.tracking.catalog_text import catalog_text
from grpo_pipeline.tracking.dataset_files import dataset_path


def test_the_path_of_a_plain_and_a_cached_dataset(tmp_path):
    plain = CSVDataset(filepath=str(tmp_path / "a.csv"))
    assert dataset_path(plain) == tmp_path / "a.csv"
    assert dataset_path(CachedDataset(plain)) == tmp_path / "a.csv"
    assert dataset_path(MetricStreamDataset(str(tmp_path / "m.jsonl"))) == tmp_path / "m.jsonl"


def test_a_versioned_dataset_gives_what_this_run_saved(tmp_path):
    for version in ("2026-01-01T00.00.00.000Z", "2026-01-02T00.00.00.000Z"):
        dataset = CSVDataset(filepath=str(tmp_path / "a.csv"), version=Version(None, version))
        dataset.save(pd.DataFrame({"x": [1]}))
        assert dataset_path(dataset) == tmp_path / "a.csv" / version / "a.csv"
        assert dataset_path(dataset).is_file()


@pytest.mark.parametrize("dataset", [None, MemoryDataset()])
def test_what_has_no_file(dataset):
    assert dataset_path(dataset) is None


def test_the_catalogue_goes_without_secrets():
    catalog = {
        "a": {"type": "pandas.CSVDataset", "filepath": "https://me:hunter2@host/a.csv", "credentials": "account"},
        "b": {"type": "x", "load_args": {"token": "s3cr3t", "sep": ";"}, "fs_args": [{"password": "p"}]},
    }
    assert yaml.safe_load(catalog_text(catalog)) == {
        "a": {"type": "pandas.CSVDataset", "filepath": "https://host/a.csv"},
        "b": {"type": "x", "load_args": {"sep": ";"}, "fs_args": [{}]},
    }
