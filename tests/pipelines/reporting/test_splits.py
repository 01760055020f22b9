"""The table of the splits, counted by hand, and what it says of a small test split."""

from types import SimpleNamespace

import pandas as pd
import pytest

from grpo_pipeline.hooks import DataHooks
from grpo_pipeline.pipelines.reporting.splits import power_lines, split_lines

TABLE = pd.DataFrame(
    {
        "split": ["train"] * 4 + ["test"] * 2 + ["val", ""],
        "patient_id": ["a", "a", "b", "c", "d", "d", "e", "f"],
        "label": [0, 1, 1, None, 0, 1, 0, 1],
    }
)


def test_each_split_is_counted_and_what_is_in_none_is_left_out():
    assert list(split_lines(TABLE, task="letters", noun="image", cluster="patient_id")) == [
        "letters  images  patients  label 0  label 1",
        "train         4         3        1        2",
        "val           1         1        1        0",
        "test          2         1        1        1",
        "1 test patients, fewer than 10: no interval can be given, and nothing shown.",
    ]


def test_without_classes_and_without_the_column_of_clusters_the_rows_alone_are_counted():
    table = pd.DataFrame({"split": ["train"] * 8, "label": range(8)})
    assert list(split_lines(table, task="t", noun="text", cluster="writer")) == [
        "t      texts",
        "train      8",
    ]


@pytest.mark.parametrize(
    ("clusters", "said"),
    [
        (9, ["9 test patients, fewer than 10: no interval can be given, and nothing shown."]),
        # 1.96 * 0.5 / sqrt(10) = 0.31; / sqrt(22) = 0.21
        (10, ["10 test patients: a share near a half is known to about ±0.31; far smaller differences cannot be shown."]),
        (22, ["22 test patients: a share near a half is known to about ±0.21; far smaller differences cannot be shown."]),
        (100, []),
    ],
)
def test_what_so_few_clusters_can_show(clusters, said):
    assert list(power_lines(clusters, "patient")) == said


def test_data_that_are_saved_in_pieces_are_told_once_a_run(monkeypatch, capsys):
    monkeypatch.setenv("GRPO_PROGRESS", "lines")
    hooks, piece = DataHooks(), SimpleNamespace(table=TABLE)
    for run in (1, 2):
        hooks.before_pipeline_run()
        hooks.after_dataset_saved("attention.examples", piece)
        hooks.after_dataset_saved("attention.examples", piece)
        assert capsys.readouterr().err.count("label 0") == 1, f"run {run}"
