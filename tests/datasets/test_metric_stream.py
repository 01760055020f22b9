"""The metric file grows, goes on, and survives a kill."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from kedro.io import DatasetError

from grpo_pipeline.datasets.metric_stream import MetricStreamDataset


def row(step, split="train", **metrics):
    return {"step": step, "epoch": step // 4, "split": split, **metrics}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "output" / "metrics.jsonl"


def steps(path):
    return MetricStreamDataset(str(path)).load()["step"].tolist()


def test_rows_come_back_in_order_with_late_columns(path):
    stream = MetricStreamDataset(str(path))
    stream.save([row(0, **{"reward/mean": 0.5})])
    stream.save([row(1, **{"reward/mean": 0.25}), row(1, "val", **{"val_loss": 2.0})])
    expected = pd.DataFrame(
        {
            "step": [0, 1, 1],
            "epoch": [0, 0, 0],
            "split": ["train", "train", "val"],
            "reward/mean": [0.5, 0.25, np.nan],
            "val_loss": [np.nan, np.nan, 2.0],
        }
    )
    pd.testing.assert_frame_equal(stream.load(), expected, check_dtype=False)


def test_a_fresh_run_starts_the_file_anew(path):
    MetricStreamDataset(str(path)).save([row(step) for step in range(5)])
    MetricStreamDataset(str(path)).save([row(0)])
    assert steps(path) == [0]


@pytest.mark.parametrize(("resumed_at", "kept"), [(1, [0]), (3, [0, 1, 2]), (9, [0, 1, 2, 3, 4])])
def test_a_resumed_run_keeps_the_rows_before_its_first_step(path, resumed_at, kept):
    MetricStreamDataset(str(path)).save([row(step) for step in range(5)])
    again = MetricStreamDataset(str(path))
    again.save([row(resumed_at)])
    again.save([row(resumed_at + 1)])
    assert steps(path) == [*kept, resumed_at, resumed_at + 1]


def test_a_torn_last_line_is_dropped_and_not_appended_to(path):
    MetricStreamDataset(str(path)).save([row(0), row(1)])
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        assert steps(path) in ([0, 1], [0])
    MetricStreamDataset(str(path)).save([row(2)])
    assert steps(path) in ([0, 1, 2], [0, 2])
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_damaged_line_in_the_middle_names_file_and_line(path):
    MetricStreamDataset(str(path)).save([row(0), row(1), row(2)])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:7], lines[2]]) + "\n")
    with pytest.raises(DatasetError, match=r"metrics\.jsonl line 2 must be a JSON object"):
        MetricStreamDataset(str(path)).load()


def test_nan_and_none_mean_not_measured(path):
    MetricStreamDataset(str(path)).save([row(0, loss=float("nan"), kl=None, reward=1.0)])
    assert json.loads(path.read_text()) == {"step": 0, "epoch": 0, "split": "train", "reward": 1.0}


def test_numpy_and_torch_scalars_become_numbers(path):
    MetricStreamDataset(str(path)).save([row(np.int64(0), a=np.float64(0.5), b=torch.tensor(2), c=np.float32("nan"))])
    assert json.loads(path.read_text()) == {"step": 0, "epoch": 0, "split": "train", "a": 0.5, "b": 2}


def test_no_rows_write_nothing(path):
    stream = MetricStreamDataset(str(path))
    stream.save([])
    stream.save(False)
    assert not path.exists()
    with pytest.raises(DatasetError, match="must exist, got no file; train first"):
        stream.load()


@pytest.mark.parametrize("bad", [{"epoch": 1}, {"step": "1"}, {"step": 1.5}, {}])
def test_a_row_needs_a_step(path, bad):
    with pytest.raises(DatasetError, match="rows with an integer 'step'"):
        MetricStreamDataset(str(path)).save([bad])
    assert not path.exists()


def test_the_preview_draws_each_metric_and_split(path):
    stream = MetricStreamDataset(str(path))
    assert stream.preview()["data"] == []
    stream.save([row(0, loss=1.0, kl=0.1), row(1, loss=0.5), row(1, "val", loss=0.75)])
    curves = {trace["name"]: (trace["x"], trace["y"]) for trace in stream.preview()["data"]}
    assert curves == {"train loss": ([0, 1], [1.0, 0.5]), "val loss": ([1], [0.75]), "train kl": ([0], [0.1])}


@pytest.mark.parametrize("line", ['{"a": 1}', "123", "[1]", '{"step": "3"}', '{"step": true}', "null"])
def test_a_row_of_another_shape_names_file_and_line(path, line):
    MetricStreamDataset(str(path)).save([{"step": 0, "split": "train", "x": 1.0}])
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(DatasetError, match=r"metrics.jsonl line 2 must be a row with an integer 'step', got .*; remove the line"):
        MetricStreamDataset(str(path)).load()


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (None, "the steps 0 to 3"),
        ([0, 1], "the steps 2 to 3"),
        ([2, 3], "the steps 0 to 1"),
        ([0, 2], "2 steps, the first of them 1"),
        ([0, 1, 2, 3, 4, 5], None),
    ],
)
def test_a_file_that_was_cut_or_is_gone_is_said_on_resume(path, caplog, held, said):
    """Training goes on at step 4."""
    if held is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"step": step, "x": 1.0}) + "\n" for step in held))
    with caplog.at_level("WARNING", logger="grpo_pipeline.datasets.metric_stream"):
        MetricStreamDataset(str(path)).save([{"step": 4, "x": 2.0}])
    told = [f"{path} must hold the steps before 4, with which training goes on, got none for {said}; "] if said else []
    assert [record.getMessage().partition("put back")[0] for record in caplog.records] == told


def test_a_run_goes_on_from_the_lowest_step_of_its_first_rows(path):
    """A validation row of an earlier step may stand behind a training row."""
    MetricStreamDataset(str(path)).save([row(step) for step in range(5)])
    MetricStreamDataset(str(path)).save([row(3), row(2, "val"), row(4)])
    table = MetricStreamDataset(str(path)).load()
    assert list(zip(table["step"], table["split"], strict=True)) == [
        (0, "train"),
        (1, "train"),
        (3, "train"),
        (2, "val"),
        (4, "train"),
    ]
