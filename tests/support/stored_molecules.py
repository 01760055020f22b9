"""Files that a run of the molecule task leaves for evaluation, report, notebook, written through the catalogue with no run."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tiny_chemist
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.io import DataCatalog
from sampled_graphs import ARMS, all_arms, evaluation_params, reward_params
from tiny_audit import audit_document

from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.pipelines.reward_audit.reward_figure import reward_figure
from grpo_pipeline.tasks.molecules.pipelines.report import draw_molecules, measure_window


def leave_results(project: Path, *, catalog: DataCatalog | None = None) -> dict[str, Any]:
    """Save predictions, metrics, audit and data report as a run does; returns the comparison that belongs to them."""
    catalog = open_catalog(project) if catalog is None else catalog
    for arm, rows in all_arms().items():
        catalog.save(f"molecules.{arm}.predictions", rows)
        catalog.save(f"molecules.{arm}.showcase", {"smiles": np.array(["C", "N", "O"])})
        steps = [{"step": i, "epoch": 0, "split": "train", "reward/mean": 0.1 * i, "supervised/loss": 1.0} for i in range(5)]
        catalog.save(f"molecules.{arm}.metric_rows", steps)
    catalog.save("molecules.reward_audit", document := audit_document())
    catalog.save("molecules.reward_audit_figure", reward_figure(document))
    catalog.save("molecules.data_report", {"rows": {"read": 48}})
    catalog.save("molecules.examples", tiny_chemist.make_examples())
    catalog.save("molecules.quarantine", pd.DataFrame({"row": [3], "name": ["x"], "text": ["C(C"], "reason": ["no SMILES"]}))
    return compare_arms(evaluation_params(), "abc", **all_arms())


def leave_reports(project: Path) -> dict[str, Any]:
    """Save what the evaluation makes of these results, too; returns the comparison."""
    catalog = open_catalog(project)
    comparison = leave_results(project, catalog=catalog)
    catalog.save("molecules.comparison", comparison)
    catalog.save("molecules.logp_window", measure_window(evaluation_params(), reward_params(), **all_arms()))
    drawings = draw_molecules(evaluation_params(), **all_arms())
    for arm in ARMS:
        for what in ("best_before", "best_after", "random_before", "random_after"):
            catalog.save(f"molecules.{arm}.{what}", drawings[f"{arm}_{what}"])
    return comparison


def open_catalog(project: Path) -> DataCatalog:
    """Return the catalogue of the small environment."""
    bootstrap_project(project)
    with KedroSession.create(project_path=project, env="smoke") as session:
        return session.load_context().catalog
