"""The notebook of the dialogue task on what a run leaves, written through the catalogue without a run."""

from pathlib import Path
from typing import Any

import pytest
from notebook_runs import executed, files, titles
from stored_replies import ARMS, leave_results

def test_it_shows_what_a_run_left_and_writes_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = leave_results(project)
    (project / "notebooks").mkdir()
    before = files(project)
    with executed("dialogue", project / "notebooks", monkeypatch) as found:
        check(found, comparison)
        assert titles() == ["reward/mean", "supervised/loss", "policy/entropy"]
    printed = capsys.readouterr().out
    assert comparison["summary"][0] in printed
    assert " 3.000  +0.70  a ring" in printed
    assert files(project) == before


def check(found: dict[str, Any], comparison: dict[str, Any]) -> None:
    """The tables are the stored comparison; an empty reply is a row like any other."""
    grpo = comparison["arms"]["grpo"]["metrics"]
    assert found["answer"].loc["reward", ("grpo", "value")] == grpo["reward"]["value"]
    assert found["answer"].loc["f1", ("grpo - supervised", "ci95")] == comparison["differences"]["grpo"]["f1"]["ci95"]
    assert found["beside"].loc["reference", "f1"] == 1.0
    assert found["beside"].loc["grpo", "distinct_2"] == grpo["distinct_2"]["value"]
    assert set(found["by_need"].columns) == {*ARMS, "start"}
    assert found["by_need"].loc[["none", "persona", "story"], "grpo"].mean() == pytest.approx(grpo["reward"]["value"])
    replies = found["predictions"]["grpo"].query("rule == 'policy'")["reply"]
    assert replies.isna().sum() == 1
    assert (replies == "NA").sum() == 1
