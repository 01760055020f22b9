"""The notebook of the molecule task on what a run leaves, written through the catalogue without a run."""

from pathlib import Path
from typing import Any

import pytest
from notebook_runs import executed, files, titles
from sampled_graphs import all_arms
from stored_molecules import ARMS, leave_reports


def test_it_shows_what_a_run_left_and_writes_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = leave_reports(project)
    (project / "notebooks").mkdir()
    before = files(project)
    with executed("molecules", project / "notebooks", monkeypatch) as found:
        check(found, comparison)
        assert titles() == ["reward/mean", "supervised/loss", "policy/entropy", "logP"]
    printed = capsys.readouterr().out
    assert comparison["summary"][0] in printed
    assert "best, after the training of grpo" in printed
    assert files(project) == before


def check(found: dict[str, Any], comparison: dict[str, Any]) -> None:
    """The tables are the stored comparison, window and rows; atoms of causes have no numbers."""
    grpo, rows = comparison["arms"]["grpo"]["metrics"], all_arms()["grpo"]
    assert found["answer"].loc["validity", ("grpo", "value")] == grpo["validity"]["value"]
    assert found["answer"].loc["reward", ("grpo - supervised", "ci95")] == comparison["differences"]["grpo"]["reward"]["ci95"]
    assert found["beside"].loc["logp", "training"] == pytest.approx(rows.loc[rows["rule"] == "training", "logp"].mean())
    assert found["beside"].loc["validity", "start"] == comparison["baselines"]["start"]["metrics"]["validity"]["value"]
    hits = {rule: rows.loc[rows["rule"] == rule, "logp"].between(0.0, 1.0).mean() for rule in ("policy", "start")}
    assert found["shares"].loc["grpo", "share"] == pytest.approx(hits["policy"])
    assert found["shares"].loc["grpo", "times the start"] == pytest.approx(hits["policy"] / hits["start"])
    assert set(found["causes"]) == {*ARMS, "start"}
    broken = rows[(rows["rule"] == "start") & (rows["is_valid"] == 0)]
    assert found["causes"]["start"].sum() == len(broken)
    assert found["causes"]["start"]["it is in 2 parts"] == (broken["cause"] == "it is in 2 parts").sum()
    assert not [cause for cause in found["causes"]["start"].index if "#" in cause]
