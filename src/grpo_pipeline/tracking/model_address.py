"""Find the model that a user names in a project: an arm, a folder, an entry of the registry, a run of MLflow, or nothing."""

import os
import re
from pathlib import Path

from grpo_pipeline.tasks.trained_arms import REGISTERED

RUN = re.compile(r"[0-9a-f]{32}")  # the id of a run in MLflow


def model_folder(project: Path, task: str, model: str, *, env: str | None, scratch: Path) -> Path:
    """Find a model's folder.

    Args:
        project: its root.
        task: whose model.
        model: name of an arm (``grpo``, ``grpo.best``), path of a folder, ``models:/…``, id of an arm's run in MLflow, or "" for
            the arm that ``<task>.predict.arm`` names.
        env: of the run.
        scratch: folder in which a registered model is put.

    Raises:
        FileNotFoundError: if there is none; the sentence says what there is.
    """
    if model.startswith(REGISTERED) or RUN.fullmatch(model):
        _open_store(project, env)
        from grpo_pipeline.tracking.registry import fetch, fetch_of_run

        return (fetch if model.startswith(REGISTERED) else fetch_of_run)(model, scratch)
    from grpo_pipeline.tracking.export import read_conf, trained_arms

    arm = model or str(read_conf(project, env=env)["parameters"][task]["predict"]["arm"])
    models = trained_arms(project, task, env=env)
    return models.find(arm, parameter="--model" if model else f"{task}.predict.arm")


def _open_store(project: Path, env: str | None) -> None:
    from grpo_pipeline.tracking.store import tracking_uri, use_store
    from grpo_pipeline.tracking.store_page import read_config

    use_store(tracking_uri(read_config(project, env=env), project, environ=os.environ))
