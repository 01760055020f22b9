"""The table of the splits, counted by hand, and what it says of a small test split."""

from types import SimpleNamespace

import pandas as pd
import pytest

from grpo_pipeline.hooks.splits import DataHooks
from grpo_pipeline.pipelines.reporting.splits import class_chart, power_lines, split_lines, splits_table

TABLE = pd.DataFrame(
    {
        "split": ["train"] * 4 + ["test"] * 2 + ["val", ""],
        "patient_id": ["a", "a", "b", "c", "d", "d", "e", "f"],
        "label": [0, 1, 1, None, 0, 1, 0, 1],
    }
)


def test_each_split_is_counted_and_what_is_in_none_is_left_out():
    assert list(split_lines(TABLE, task="letters", noun="image", cluster="patient_id", classes="label")) == [
        "letters  images  patients  label 0  label 1",
        "train         4         3        1        2",
        "val           1         1        1        0",
        "test          2         1        1        1",
        "1 test patients, fewer than 10: no interval can be given, and nothing shown.",
    ]


def test_without_classes_and_a_column_of_clusters_the_rows_alone_are_counted():
    table = pd.DataFrame({"split": ["train"] * 8, "label": range(8)})
    assert list(split_lines(table, task="t", noun="text", cluster="writer", classes="label")) == [
        "t      texts",
        "train      8",
    ]


def test_classes_may_have_names_and_the_page_has_the_same_table():
    table = pd.DataFrame({"split": ["val", "train", "train", "train"], "kind": ["b", "b", "a", "b"]})
    assert list(split_lines(table, task="t", noun="text", cluster="writer", classes="kind")) == [
        "t      texts  kind a  kind b",
        "train      3       1       2",
        "val        1       0       1",
    ]
    shown = splits_table(table, noun="text", cluster="writer", classes="kind")
    assert shown.heads == ["split", "texts", "kind a", "kind b"]
    assert [[cell.text for cell in row] for row in shown.rows] == [["train", "3", "1", "2"], ["val", "1", "0", "1"]]


def test_the_chart_has_the_share_of_each_class_in_each_split():
    figure = class_chart(TABLE, "label")  # a share of all rows of the split: one of four has no label
    assert figure is not None
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["train: 4", "val: 1", "test: 2"]
    heights = [[bar.get_height() for bar in panel.patches] for panel in figure.axes]
    assert heights == [[0.25, 0.5], [1.0, 0.0], [0.5, 0.5]]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", "1"]
    assert class_chart(TABLE, "patient_id") is not None  # no column of the table, but bars
    assert class_chart(TABLE, "grade") is None
    assert class_chart(TABLE.assign(label=1), "label") is None


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
