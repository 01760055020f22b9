"""The last thing on the terminal."""

import pytest
from rich.console import Console
from rich.table import Table

from grpo_pipeline.tracking.summary import cell_text, comparison_tables


@pytest.mark.parametrize(
    ("entry", "sign", "with_interval", "text"),
    [
        ({"value": 0.8125, "ci95": [0.75, 0.875]}, False, True, "0.812 [0.750, 0.875]"),
        ({"value": 0.8125, "ci95": [0.75, 0.875]}, False, False, "0.812"),
        ({"value": 0.25, "ci95": [-0.125, 0.5]}, True, True, "+0.250 [-0.125, +0.500]"),
        ({"value": 0.5, "ci95": None}, False, True, "0.500"),
        ({"value": 0.5, "ci95": [None, None]}, False, True, "0.500"),
        ({"value": None, "ci95": None, "reason": "one class only"}, False, True, "undefined: one class only"),
        ({"value": None}, True, True, "undefined: no reason given"),
        (None, False, True, ""),
    ],
)
def test_cells(entry, sign, with_interval, text):
    assert cell_text(entry, sign=sign, with_interval=with_interval) == text


def metric(value):
    return {"auroc": {"value": value, "ci95": [value - 0.25, value + 0.25]}}


COMPARISON = {
    "task": "attention",
    "control": "supervised",
    "split": "test",
    "n": {"examples": 240, "clusters": 40, "cluster": "patient_id"},
    "arms": {"supervised": {"metrics": metric(0.75)}, "grpo": {"metrics": metric(0.5)}},
    "differences": {"grpo": metric(-0.25)},
    "baseline_arm": "grpo",
    "baselines": {"uniform": {"metrics": metric(0.5)}, "oracle": {"metrics": metric(0.875)}},
    "verdict": ["No difference was shown."],
}


def shown(comparison, width=130):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for part in comparison_tables(comparison):
        console.print(part)
    return console.export_text()


def test_a_negative_result_stands_like_any_other():
    text = shown(COMPARISON)
    assert text.startswith("attention, test split, 240 examples, 40 clusters by patient_id: value [95% interval]")
    assert "-0.250 [-0.500, +0.000]" in text
    assert text.rstrip().endswith("No difference was shown.")


def test_columns_name_the_control_and_the_differences():
    tables = [part for part in comparison_tables(COMPARISON) if isinstance(part, Table)]
    assert [[column.header for column in table.columns] for table in tables] == [
        ["metric", "supervised (control)", "grpo", "grpo - supervised"],
        ["metric", "uniform", "oracle"],
    ]


def test_no_baselines_no_table():
    assert sum(isinstance(part, Table) for part in comparison_tables({**COMPARISON, "baselines": {}})) == 1


def test_a_reason_is_given_once_in_a_row():
    nothing = {"auroc": {"value": None, "reason": "the split holds one class"}}
    text = shown({**COMPARISON, "arms": {"supervised": {"metrics": nothing}, "grpo": {"metrics": nothing}}})
    assert text.count("the split holds one class") == 1
    assert text.count("undefined") == 2
