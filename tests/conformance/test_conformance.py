"""Our functions answer what the oracles answered; the oracles' libraries are not needed here."""

import math
import re
from dataclasses import replace
from pathlib import Path

import frozen
import ours
import pytest
import torch
from cases import digest, draw
from comparisons import COMPARISONS
from disputes import DISPUTES
from outcomes import Distance, Outcome, distance, evaluate
from rows import EXACT, FROZEN, LIBRARIES, Comparison

ROOT = Path(__file__).resolve().parents[2]


def name_of(row: Comparison) -> str:
    kinds = "" if row.wanted is not None else " on purpose"
    return f"{row.library}: {row.ours} | {row.oracle}, {row.cases}{kinds}".replace("`", "")


def measure(row: Comparison) -> Distance:
    cases, answers = draw(row.cases, FROZEN[row.cases]), frozen.load(row.library).outcomes[row.frozen_name]
    kept = [(case, answer) for case, answer in zip(cases, answers, strict=True) if row.keep([case])]
    return distance(evaluate(row.compute, [case for case, _ in kept]), [answer for _, answer in kept])


@pytest.mark.parametrize("row", [row for row in COMPARISONS if row.wanted is not None], ids=name_of)
def test_agrees_with_the_oracle(row: Comparison) -> None:
    found = measure(row)
    assert found.value <= row.wanted
    assert (found.gradient or 0.0) <= row.wanted
    assert found.not_finite < found.cases


@pytest.mark.parametrize("row", [row for row in COMPARISONS if row.wanted is None], ids=name_of)
def test_differs_from_the_oracle_where_the_document_says_so(row: Comparison) -> None:
    assert measure(row).value > EXACT


def test_a_tied_group_is_exactly_0_where_the_oracle_has_round_off() -> None:
    cases, answers = draw("tied rewards", FROZEN["tied rewards"]), frozen.load("trl").outcomes["group in float32 on tied rewards"]
    for case, answer in zip(cases, answers, strict=True):
        found = ours.advantages(case).value
        assert found[0].tolist() == [0.0] * found.shape[1]
        # The rest of the batch agrees as well as float32 allows.
        torch.testing.assert_close(found[1:], answer.value[1:], rtol=1e-5, atol=1e-5)
    assert max(float(answer.value[0].abs().max()) for answer in answers) > 1e-4


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_inputs_are_those_that_the_oracles_saw(library: str) -> None:
    """NumPy's raw stream is fixed; should it change all the same, this says so, and ``make conformance`` freezes anew."""
    for name, expected in frozen.load(library).digests.items():
        assert digest(draw(name, FROZEN[name])) == expected


def test_a_wrong_sign_or_a_lost_mask_would_be_seen() -> None:
    row = next(row for row in COMPARISONS if row.library == "trl" and row.key == "dapo")
    flipped = replace(row, compute=lambda case: row.compute(replace(case, advantages=-case.advantages)))
    unmasked = replace(row, compute=lambda case: row.compute(replace(case, is_valid=torch.ones_like(case.is_valid))))
    assert measure(flipped).value > 1e-3
    assert measure(flipped).gradient > 1e-3
    assert measure(unmasked).gradient > 1e-3


def test_a_distance_is_in_units_of_its_case_where_the_oracle_has_an_answer() -> None:
    """|3 - 1| / 4 = 0.5 (the gradient's 4 is the size); the case with the NaN is counted."""
    one, three, nan = (torch.tensor([x]) for x in (1.0, 3.0, math.nan))
    four = torch.tensor([4.0])
    found = distance([Outcome(three, four), Outcome(one, one)], [Outcome(one, four), Outcome(nan, one)])
    assert found == Distance(cases=2, value=0.5, gradient=0.0, not_finite=1)
    assert distance([Outcome(nan)], [Outcome(one)]).value == math.inf
    with pytest.raises(ValueError, match=r"must have one shape, got \[1\] and \[2\]"):
        distance([Outcome(one)], [Outcome(torch.ones(2))])


def test_fixtures_hold_what_the_rows_ask_for_and_are_small() -> None:
    for library in LIBRARIES:
        fixture = frozen.load(library)
        assert fixture.library == library
        assert fixture.outcomes.keys() == {row.frozen_name for row in COMPARISONS if row.library == library}
    assert sum(frozen.path(library).stat().st_size for library in LIBRARIES) < 400_000


def test_the_document_is_about_these_rows_and_versions() -> None:
    text = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    rows = {(cell[0], cell[1]) for cell in cells}
    assert {(row.ours, row.oracle) for row in COMPARISONS} | {("ours", "oracle")} | {
        (dispute.question, f"{LIBRARIES[dispute.first[0]]}, {dispute.first[1]}") for dispute in DISPUTES
    } | {("question", "one side")} == rows
    assert {len(cell) for cell in cells} == {7}
    for library, name in LIBRARIES.items():
        assert re.search(rf"^## {name} {re.escape(frozen.load(library).version)}$", text, re.MULTILINE)
