"""The last thing on the terminal."""

import re

import pandas as pd
import pytest
from rich.console import Console
from rich.table import Table

from grpo_pipeline.tracking.summary import cell_text, comparison_tables, flow_table, places, prediction_text


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
    "summary": ["No difference was shown."],
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
        ["rule", "auroc"],
    ]


UNDEFINED = {"value": None, "ci95": None, "reason": "undefined: the split holds one class"}


def test_a_metric_that_is_undefined_everywhere_has_a_line_instead_of_a_row():
    nothing = {"auroc": UNDEFINED}
    scores = {"supervised": {"metrics": nothing | {"brier": {"value": 0.25, "ci95": None}}}, "grpo": {"metrics": nothing}}
    text = shown({**COMPARISON, "arms": scores, "differences": {"grpo": nothing}, "baselines": {}})
    assert "- auroc: undefined: the split holds one class\n" in text
    assert text.count("auroc") == text.count("undefined") == 1


def test_an_undefined_cell_is_a_dash():
    baselines = {"uniform": {"metrics": metric(0.5)}, "none": {"metrics": {"auroc": UNDEFINED}}}
    text = shown({**COMPARISON, "baselines": baselines})
    assert re.search(r"^uniform +0.500 *$", text, re.MULTILINE)
    assert re.search(r"^none +- *$", text, re.MULTILINE)


def test_of_the_baselines_the_headline_is_shown_else_every_metric_whatever_its_name():
    scores = metric(0.5) | {"bycatch": {"value": 0.125, "ci95": None}, "reward": {"value": -0.75, "ci95": None}}
    text = shown({**COMPARISON, "baselines": {"uniform": {"metrics": scores}}})
    assert text.partition("Other rules")[2].split()[5:9] == ["rule", "auroc", "bycatch", "reward"]
    own = {"uniform": {"bycatch": {"value": 0.25, "ci95": [-0.125, 0.5]}, "reward": {"value": None, "ci95": None}}}
    own |= {"blobs": {"bycatch": {"value": None, "ci95": None}, "reward": {"value": None, "ci95": None}}}
    verdicts = {rule: {"bycatch": told, "reward": told} for rule, told in (("uniform", "no difference shown"), ("blobs", ""))}
    chosen = {"headline": ["bycatch"], "baselines": {"uniform": {"metrics": scores}}}
    beside = {"own_minus_arms": {"supervised": own["uniform"]}, "arm_verdicts": {"supervised": verdicts["uniform"]}}
    found = {**COMPARISON, **chosen, **beside, "own_minus_baseline": own, "verdicts": verdicts}
    text = shown(found, width=120).partition("Other rules")[2]
    assert re.search(r"^rule +bycatch *$", text, re.MULTILINE)
    assert re.search(r"^arm or rule +grpo - this, bycatch +is it better\? *$", text, re.MULTILINE)  # and no column of the reward
    assert re.search(r"^arm supervised +\+0.250 \[-0.125, \+0.500\] +not shown *$", text, re.MULTILINE)
    assert re.search(r"^uniform +\+0.250 \[-0.125, \+0.500\] +not shown *$", text, re.MULTILINE)
    assert re.search(r"^blobs +- *$", text, re.MULTILINE)


def test_what_is_the_same_everywhere_has_a_line_instead_of_a_row():
    same, other = ({"value": value, "ci95": [value - 1e-13, value + 1e-13]} for value in (3.0, 2.0))  # as means are rounded
    zero, wide = {"value": 0.0, "ci95": [0.0, 0.0]}, {"value": 3.0, "ci95": [3.0, 4.0]}
    for ours, theirs, gap, is_shown in ((same, same, zero, False), (other, same, other, True), (wide, same, zero, True)):
        arms = {"supervised": {"metrics": {"points": theirs}}, "grpo": {"metrics": {"points": ours}}}
        text = shown({**COMPARISON, "arms": arms, "differences": {"grpo": {"points": gap}}, "baselines": {}})
        assert bool(re.search("^points", text, re.MULTILINE)) == is_shown
        assert ("- the same in every arm and example: points 3.000\n" in text) != is_shown


def test_with_more_arms_the_differences_are_a_table_of_their_own():
    scores = {name: {"value": -0.678, "ci95": [-0.689, -0.663]} for name in ("perplexity", "reward_rouge_l")}
    arms = ("supervised", "reinforce", "grpo")
    many = {"arms": {arm: {"metrics": scores} for arm in arms}, "differences": dict.fromkeys(arms[1:], scores), "baselines": {}}
    text = shown({**COMPARISON, **many}, width=120)
    assert "…" not in text
    assert [line.count("[-0.689, -0.663]") for line in text.splitlines() if "reward_rouge_l" in line] == [3, 2]


def test_the_graph_is_a_file_where_one_was_built(tmp_path):
    assert "Graph   make viz" in places(None, graph=None, tracker=None).plain
    text = places(None, graph=tmp_path / "index.html", tracker=None).plain
    assert f"Graph   {tmp_path / 'index.html'} (behind a file server; or: make viz)" in text


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


def test_why_there_is_no_interval_has_a_line_and_every_metric_is_not_spelt_out():
    few = "no interval: 4 clusters, fewer than 10"
    one, two = {"value": 0.25, "ci95": None, "reason": few}, {"value": 0.5, "ci95": [0.25, 0.75]}
    for other, named in ((two, "auroc"), (one, "every metric")):
        arms = {name: {"metrics": {"auroc": one, "brier": other}} for name in ("supervised", "grpo")}
        differences = {"grpo": {"auroc": one, "brier": other}}
        text = shown({**COMPARISON, "arms": arms, "differences": differences, "baselines": {}})
        assert f"- {named}: {few}\n" in text
