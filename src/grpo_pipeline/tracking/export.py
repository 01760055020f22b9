"""Export a finished arm's newest model as a folder that MLflow can load and serve."""

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from grpo_pipeline.datasets.trained_arms import recorded_arms
from grpo_pipeline.runs.config_loader import ReplacingConfigLoader
from grpo_pipeline.settings import CONFIG_LOADER_ARGS
from grpo_pipeline.tasks.trained_arms import TrainedArms
from grpo_pipeline.tracking.served import save_served


def read_conf(project: Path, *, env: str | None) -> ReplacingConfigLoader:
    """Read the configuration of a project's environment, without a run."""
    return ReplacingConfigLoader(conf_source=str(project / "conf"), env=env, **CONFIG_LOADER_ARGS)


def trained_arms(project: Path, task: str, *, env: str | None) -> TrainedArms:
    """Find a task's models in the catalogue of a project's environment."""
    catalog = read_conf(project, env=env)["catalog"]
    return recorded_arms(
        Path(os.path.abspath(project / catalog[f"{task}.predict.models"]["filepath"]))
    )


def export_arm(arms: TrainedArms, arm: str, *, target: Path) -> Path:
    """Write an arm's newest model to a new folder, completely or not at all; returns the model's own folder.

    Raises:
        FileNotFoundError: if the arm has no model.
        FileExistsError: if the folder is there.
        ValueError: if the model cannot be used alone.
    """
    if target.exists():
        raise FileExistsError(
            f"--to must be a folder that does not exist yet, got {target}; choose another or remove it"
        )
    model = arms.find(arm, parameter="--arm")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f"{target.name}.partial-", dir=target.parent
    ) as staging:
        save_served(model, Path(staging) / "pyfunc")
        shutil.move(Path(staging) / "pyfunc", target)
    return model


def export(project: Path, options: argparse.Namespace, *, env: str | None) -> int:
    """Export a model and print how to use it."""
    target = options.to.absolute()
    try:
        model = export_arm(trained_arms(project, options.task, env=env), options.arm, target=target)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{model} is exported to {target}")
    print(
        f". {shlex.quote(os.path.relpath(Path(sys.executable).with_name('activate')))}; mlflow models serve -m "
        f"{shlex.quote(str(target))} --env-manager local --port 5001   answers requests (docs/prediction.md)"
    )
    return 0
