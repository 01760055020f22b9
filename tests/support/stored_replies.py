"""Files that a run of the dialogue task leaves for evaluation, report, notebook, written through the catalogue with no run."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tiny_talk
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from tiny_audit import audit_document
from tiny_replies import evaluation_params, make_predictions

from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.pipelines.reward_audit.reward_figure import reward_figure

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
        catalog.save(f"dialogue.{arm}.showcase", {"greedy": np.array(["a", "b", "c"])})
        rows = [{"step": i, "epoch": 0, "split": "train", "reward/mean": 0.1 * i, "supervised/loss": 1.0} for i in range(5)]
        catalog.save(f"dialogue.{arm}.metric_rows", rows)
    catalog.save("dialogue.grpo.rollouts", rollouts())
    catalog.save("dialogue.reward_audit", document := audit_document())
    catalog.save("dialogue.reward_audit_figure", reward_figure(document))
    for name in ("data_report", "token_report", "retrieval_report"):
        catalog.save(f"dialogue.{name}", {"rows": {"read": 48}})
    catalog.save("dialogue.examples", tiny_talk.make_examples())
    catalog.save("dialogue.quarantine", pd.DataFrame({"row": [3], "example_id": ["x"], "file": ["f"], "reason": ["blank"]}))
    return comparison


def rollouts() -> pd.DataFrame:
    texts = {"example_id": "e1", "subject_id": "p1", "needs": "story", "question": "what?", "answer": "a ring"}
    return pd.DataFrame({"sample": [0, 1], "reply": ["", "a ring"], "reward": [0.0, 3.0], "advantage": [-0.7, 0.7]}).assign(
        **texts
    )
