"""The reward audit's tables show the document's numbers, and a page shows the section."""

import numpy as np
import pandas as pd
import pytest
from tiny_audit import MODEL, audit_document, rows_of, sound, with_model

from grpo_pipeline.pipelines.reporting.reward_section import agreement_table, components_table, policies_table
from grpo_pipeline.statistics import bootstrap


@pytest.fixture(autouse=True)
def two_clusters_are_enough(monkeypatch):
    """Give intervals to four examples of two clusters, which can be worked out by hand."""
    monkeypatch.setattr(bootstrap, "FEW_CLUSTERS", 2)


def cells(row):
    return [cell.text for cell in row]


def test_policies_and_parts_golden():
    table = policies_table(audit_document())
    assert table.heads == ["policy", "role", "reward", "reward − model", "component f1", "component style", "quality ↑"]
    assert [cells(row) for row in table.rows] == [
        ["model", "start", "0.280", "", "0.233", "0.093", "0.233"],
        ["parrot", "trivial", "0.000", "-0.280", "0.000", "0.000", "0.000"],
        ["answer", "ceiling", "1.000", "+0.720", "1.000", "0.000", "1.000"],
    ]
    assert [row[3].tone for row in table.rows] == ["", "", "better"]
    assert table.rows[1][3].note == "[-0.300, -0.260]"
    rows = sound()
    paid = pd.concat([rows[rows["policy"] != "parrot"], rows_of("parrot", np.full((4, 1), 0.9))])
    assert policies_table(audit_document(paid)).rows[1][3].tone == "worse"  # a trivial policy above the start
    table = components_table(audit_document(with_model(MODEL, style=1.0)))
    assert [cells(row) for row in table.rows] == [["f1", "1", "1.000", "0%"], ["style", "0.5", "0.000", "100%"]]
    assert table.caption.startswith("Inside the groups of model: standard deviation of the reward 0.150 [")
    assert table.caption.endswith("], 0% of the groups tie")


def test_agreement_shows_both_kinds_of_both_places():
    document = audit_document()
    table = agreement_table(document)
    heads = ["reward, inside groups", "reward, between examples", "f1, inside groups", "f1, between examples"]
    assert [row[0].text for row in table.rows][:4] == heads
    found = document["agreement"]["model"]["reward"]["quality"]
    for row, kind in zip(table.rows, ("within", "between"), strict=False):
        rho, r = (found[kind][name]["value"] for name in ("spearman", "pearson"))
        assert row[1].text == f"ρ {rho:+.2f}, r {r:+.2f}"
        assert row[1].note.endswith(", n 4")
    undefined = agreement_table(audit_document(with_model(MODEL, quality=0.5))).rows[0][1]
    assert (undefined.text, undefined.note) == ("undefined", "reward and metric never both differ inside a group")
