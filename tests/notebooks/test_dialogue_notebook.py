"""The notebook of the dialogue task on what a run leaves, written through the catalogue without a run."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from notebook_runs import executed, files, titles
from tiny_replies import evaluation_params, make_predictions

from grpo_pipeline.pipelines.evaluation.nodes import compare_arms

ARMS = ("supervised", "reinforce", "grpo")


def leave_results(project: Path) -> dict[str, Any]:
    """Save predictions, metrics, samples and comparison as a run does; returns the comparison."""
    bootstrap_project(project)
    with KedroSession.create(project_path=project, env="smoke") as session:
        catalog = session.load_context().catalog
    predictions = {arm: make_predictions(skill=0.3 + 0.2 * place, seed=place) for place, arm in enumerate(ARMS)}
    predictions["grpo"].loc[predictions["grpo"]["rule"] == "policy", "reply"] = ["", "NA", *["red dog"] * 46]
    comparison = compare_arms(evaluation_params(), "abc", **predictions)
    catalog.save("dialogue.comparison", comparison)
    for arm in ARMS:
        catalog.save(f"dialogue.{arm}.predictions", predictions[arm])
        rows = [{"step": i, "epoch": 0, "split": "train", "reward/mean": 0.1 * i, "supervised/loss": 1.0} for i in range(5)]
        catalog.save(f"dialogue.{arm}.metric_rows", rows)
    catalog.save("dialogue.grpo.rollouts", rollouts())
    return comparison


def rollouts() -> pd.DataFrame:
    texts = {"example_id": "e1", "persona_id": "p1", "needs": "story", "question": "what?", "answer": "a ring"}
    return pd.DataFrame({"sample": [0, 1], "reply": ["", "a ring"], "reward": [0.0, 3.0], "advantage": [-0.7, 0.7]}).assign(**texts)


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
    assert comparison["verdict"][0] in printed
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
