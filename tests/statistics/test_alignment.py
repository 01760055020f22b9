"""Row i is the same unit in every table, whatever the order of the files; what does not fit is named."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from grpo_pipeline.statistics.alignment import align_arms, digest_of_units
from grpo_pipeline.statistics.metric import MetricSuite, Unit

SUITE = MetricSuite(
    unit=Unit("cow", noun="cow", facts=("breed", "age")),
    metrics={},
    rules=("own", "begun", "never"),
    required=("cow", "rule", "milk"),
    finite=("milk", "fat"),
    combine=lambda rows: rows[rows["milk"] != -1.0],  # comes first: what it takes out is not checked
    prepare=lambda rows: rows.assign(place=np.arange(len(rows))),
)
# Sorted as texts: "10" stands before "2" and "9".
COWS = [9, 10, 2]
FACTS = {"breed": ["x", "y", "x"], "age": [4, 4, 7], "farm": ["north", "south", "north"]}


def table(rule: str, shift: float = 0.0, order: tuple[int, ...] = (0, 1, 2)) -> pd.DataFrame:
    rows = pd.DataFrame({"cow": COWS, "rule": rule, "milk": [9.0, 10.0, 2.0], "fat": 0.5} | FACTS)
    return rows.assign(milk=rows["milk"] + shift).iloc[list(order)]


def aligned(**arms: Any) -> Any:
    return align_arms(arms, SUITE, headline="own", cluster="farm")


def test_rows_are_those_of_the_same_unit_whatever_the_order_of_the_files() -> None:
    line = pd.concat(
        [table("zebra", 30, (2, 0, 1)), table("own", 20, (1, 2, 0)), table("begun", 10, (2, 1, 0)), table("also", 40)]
    )
    line = pd.concat([line, table("own").assign(milk=-1.0)])
    found = aligned(line=line, trawl=table("own", 50))
    # The rules of the report first, in its order, then the others by name.
    assert {arm: list(rules) for arm, rules in found.items()} == {"line": ["own", "begun", "also", "zebra"], "trawl": ["own"]}
    shifts = {("line", "own"): 20, ("line", "begun"): 10, ("line", "also"): 40, ("line", "zebra"): 30, ("trawl", "own"): 50}
    for (arm, rule), shift in shifts.items():
        rows = found[arm][rule]
        assert rows["cow"].tolist() == ["10", "2", "9"]
        assert rows["milk"].tolist() == [10.0 + shift, 2.0 + shift, 9.0 + shift]
        assert rows["breed"].tolist() == ["y", "x", "x"]
        assert rows.index.tolist() == [0, 1, 2]
    # All rules of an arm are prepared together, sorted by rule and unit: also, begun, own, zebra.
    assert [rows["place"].tolist() for rows in found["line"].values()] == [[6, 7, 8], [3, 4, 5], [0, 1, 2], [9, 10, 11]]


REST = table("own")


@pytest.mark.parametrize(
    ("line", "trawl", "sentence"),
    [
        (
            REST.drop(columns="farm"),
            REST,
            "predictions of line must have the columns cow, rule, milk, farm, got none named 'farm'",
        ),
        (REST.drop(columns="milk"), REST, "got none named 'milk'"),
        (REST, REST.head(0), "predictions of trawl must hold at least one row, got none; check the test split"),
        (REST, pd.concat([REST, REST.tail(1)]), "predictions of trawl must hold a cow once per rule, got '2' twice in 'own'"),
        (REST, pd.concat([REST, REST.tail(1).assign(age=8, milk=1.0)]), "got '2' twice in 'own'"),  # whatever else it says
        (REST, REST.assign(fat=[0.5, np.inf, 0.5]), "fat in the predictions of trawl must be finite, got inf for cow '10' under"),
        (REST, pd.concat([REST, table("zebra").assign(milk=[9.0, np.nan, 2.0])]), "got nan for cow '10' under"),
        (REST, REST.assign(rule="begun"), r"predictions of trawl must hold the rule 'own', got \['begun'\]"),
        (REST, REST.head(2), "predictions of trawl / own .* got 2 cows against 3 \\(cow '2' is on one side only"),
        (REST, pd.concat([REST, table("begun").tail(1)]), "predictions of trawl / begun .* got 1 cows against 3 \\(cow '10' is"),
        (REST, REST.assign(age=[4, 4, 8]), "age of cow '2' must be the same in all arms, got another value in trawl / own"),
        (REST, REST.assign(breed="x"), "breed of cow '10' must be the same in all arms"),
        (REST, REST.assign(farm="north"), "farm of cow '10' must be the same in all arms"),
        (pd.concat([REST, table("begun").assign(farm="east")]), REST, "farm of cow '10' .* another value in line / begun"),
    ],
    ids=range(14),
)
def test_tables_that_do_not_fit_are_refused(line: pd.DataFrame, trawl: pd.DataFrame, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        aligned(line=line, trawl=trawl)


def test_what_was_scored_has_a_digest_of_names_facts_and_clusters_in_any_order() -> None:
    unit = Unit("fish", "fish", facts=("kind",))
    rows = pd.DataFrame({"fish": ["a", "b"], "kind": [0, 1], "ship": ["x", "y"], "caught": [0.5, 0.25]})
    digest = digest_of_units(rows, unit=unit, cluster="ship")
    assert digest_of_units(rows.iloc[::-1].assign(caught=0.0), unit=unit, cluster="ship") == digest
    for changed in ({"fish": ["a", "c"]}, {"kind": [1, 0]}, {"ship": ["x", "x"]}):
        assert digest_of_units(rows.assign(**changed), unit=unit, cluster="ship") != digest
