"""Text that a spreadsheet would run is escaped in the file, and comes back as it was."""

import csv
from pathlib import Path

import pandas as pd
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.datasets.table import TableDataset, escaped, restored

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ['=HYPERLINK("http://x","y")', "+1+cmd", "-2+3", "@SUM(A1)", "\tx", "\rx", "'=x", "''", "-0.5", "+4", "plain", "it's", ""]


def test_nothing_in_the_file_is_run_and_everything_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    table = pd.DataFrame({"reply": TEXTS, "=name": TEXTS[::-1], "score": [-1.5] * len(TEXTS), "n": range(len(TEXTS))})
    load_args = {"dtype": {"reply": str, "=name": str, "'=name": str}, "keep_default_na": False}
    dataset = TableDataset(filepath=str(path), save_args={"index": False}, load_args=load_args)
    dataset.save(table)
    pd.testing.assert_frame_equal(dataset.load(), table, check_dtype=False)
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["reply", "'=name", "score", "n"]
    assert [row[0] for row in rows[:8]] == ["'" + text for text in TEXTS[:7]] + ["''"]
    assert rows[0][2] == "-1.5"
    assert [row[0] for row in rows[8:10]] == ["-0.5", "+4"]


@settings(max_examples=200)
@given(st.lists(st.text(st.sampled_from("'=+-@\t\r1.ea"), max_size=5), min_size=1))
def test_escaping_has_an_inverse(texts: list[str]) -> None:
    table = pd.DataFrame({"text": texts}, dtype=object)
    assert restored(escaped(table))["text"].tolist() == texts


def test_every_table_of_the_catalogue_is_escaped() -> None:
    entries = {
        name: entry["type"]
        for file in (ROOT / "conf").rglob("catalog*.yml")
        for name, entry in yaml.safe_load(file.read_text()).items()
        if isinstance(entry, dict) and str(entry.get("filepath", "")).endswith(".csv")
    }
    assert len(entries) > 20
    assert {name: kind for name, kind in entries.items() if kind != "grpo_pipeline.datasets.table.TableDataset"} == {}
