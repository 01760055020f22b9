"""The last thing on the terminal."""

import re

import pandas as pd
import pytest
from rich.console import Console

from grpo_pipeline.pipelines.reporting.tables import Cell, Table
from grpo_pipeline.tracking.summary import cell_text, flow_table, places, prediction_text, table_parts


@pytest.mark.parametrize(
    ("entry", "sign", "with_interval", "text"),
    [
        ({"value": 0.8125, "ci95": [0.75, 0.875]}, False, True, "0.812 [0.750, 0.875]"),
        ({"value": 0.8125, "ci95": [0.75, 0.875]}, False, False, "0.812"),
        ({"value": 0.25, "ci95": [-0.125, 0.5]}, True, True, "+0.250 [-0.125, +0.500]"),
        ({"value": 0.5, "ci95": None}, False, True, "0.500"),
        ({"value": 0.5, "ci95": [None, None]}, False, True, "0.500"),
        ({"value": None, "ci95": None, "reason": "one class only"}, False, True, "-"),
        ({"value": None}, True, True, "-"),
        (None, False, True, ""),
    ],
)
def test_cells(entry, sign, with_interval, text):
    assert cell_text(entry, sign=sign, with_interval=with_interval) == text


def shown(table, width=120):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for part in table_parts(table):
        console.print(part)
    return console.export_text()


def test_a_table_of_the_page_keeps_caption_heads_intervals_and_marks_no_markup():
    rows = [[Cell("Loss [b] ↓"), Cell("0.250", note="[0.125, 0.500]"), Cell("-0.125", note="[-0.500, +0.250]", tone="worse")]]
    lines = shown(Table("What [i]arms[/i] did", ["metric", "grpo", "grpo − control"], rows)).splitlines()
    assert lines[1] == "What [i]arms[/i] did"
    assert [part.strip() for part in re.split("  +", lines[2].strip())] == ["metric", "grpo", "grpo − control"]
    assert [part.strip() for part in re.split("  +", lines[4].strip())] == [
        "Loss [b] ↓",
        "0.250 [0.125, 0.500]",
        "-0.125 [-0.500, +0.250]",
    ]
    assert len(lines) == 5


def test_columns_that_do_not_fit_follow_below_beside_the_same_rows():
    values = [Cell(f"-0.67{place}", note="[-0.689, -0.663]") for place in range(5)]
    text = shown(Table("Many", ["metric", "a", "b", "a", "c", "d"], [[Cell("Perplexity of the references ↓"), *values]]))
    rows = [line for line in text.splitlines() if line.startswith("Perplexity of the references ↓")]
    assert [re.findall(r"-0.67\d", row) for row in rows] == [
        ["-0.670", "-0.671", "-0.672"],
        ["-0.673", "-0.674"],
    ]  # 34 + 3 * 26 letters
    assert max(map(len, text.splitlines())) <= 120


def test_narrow_columns_stay_beside_each_other_and_long_heads_break():
    row = [Cell("start"), *(Cell(text) for text in ("+0.1", "no statement") * 4)]
    heads = ["rule", *(head for place in range(4) for head in (f"grpo minus this one, metric {place}", "is it better?"))]
    text = shown(Table("Rivals", heads, [row]))
    assert text.count("start ") == 1
    assert max(map(len, text.splitlines())) <= 120


UNDEFINED, FEW = Cell("undefined", note="one class only"), Cell("0.500", note="no interval: 4 clusters, fewer than 10")


def test_empty_cells_are_dashes_and_why_stands_once_below_with_the_rows():
    # What a rule does stands beside its name on the page, and is no reason.
    rows = [[Cell("uniform", note="drawn uniformly"), FEW, FEW], [Cell("none"), UNDEFINED, FEW], [Cell("start"), UNDEFINED, FEW]]
    text = shown(Table("Rules", ["", "AUROC", "Brier"], rows))
    assert re.search(r"^none +- +0.500 *$", text, re.MULTILINE)
    assert text.splitlines()[-2:] == ["- every row: no interval: 4 clusters, fewer than 10", "- none, start: one class only"]
    assert "drawn" not in text


def test_the_graph_is_a_file_where_one_was_built(tmp_path):
    assert "Graph   grpo ui graph" in places(None, graph=None, tracker=None).plain
    text = places(None, graph=tmp_path / "index.html", tracker=None).plain
    assert f"Graph   {tmp_path / 'index.html'} (behind a file server; or: grpo ui graph)" in text


def test_gradient_norms_as_a_table():
    norms = pd.DataFrame(
        [
            ("supervised", "encoder", 0.25), ("supervised", "policy_head", 0.0),
            ("policy", "encoder", 1e-9), ("policy", "policy_head", 3.0), ("reward", "class", 0.0),
        ],
        columns=["term", "component", "grad_norm"],
    )  # fmt: skip
    rows = [line.split() for line in flow_table(norms).splitlines()]
    assert rows == [["encoder", "policy_head"], ["supervised", "2.5e-01", "0"], ["policy", "1.0e-09", "3.0e+00"]]


def test_a_prediction_says_what_to_know_about_it(tmp_path):
    report = {
        "scored": 9,
        "rows": 12,
        "quarantined": 3,
        "arm": "grpo",
        "model": "v1",
        "absent_columns": ["bag_mask"],
        "notes": ["n"],
    }
    text = prediction_text(report, where={"scores": tmp_path / "scores.csv"})
    assert text.splitlines()[:-1] == [
        "9 of 12 rows scored by grpo, model v1",
        "- 3 rows were refused: quarantine.csv",
        "- not in the manifest: bag_mask",
        "- n",
    ]
    assert text.splitlines()[-1].endswith("scores.csv")
    plain = report | {"quarantined": 0, "absent_columns": [], "notes": []}
    assert prediction_text(plain, where={}) == "9 of 12 rows scored by grpo, model v1"
