"""``python -m grpo_pipeline.tracking``: open this project's MLflow store in a browser, wherever mlflow.yml says it is.

``python -m grpo_pipeline.tracking export --arm grpo --to <folder>`` writes a finished arm's model as MLflow loads and serves it.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kedro.utils import find_kedro_project

from grpo_pipeline.datasets.checkpoint import recorded_arms
from grpo_pipeline.runs.config_loader import ReplacingConfigLoader
from grpo_pipeline.session import sigterm_raises
from grpo_pipeline.settings import CONFIG_LOADER_ARGS
from grpo_pipeline.tasks import TASKS
from grpo_pipeline.tasks.serving import serving_of
from grpo_pipeline.tasks.trained_arms import TrainedArms
from grpo_pipeline.tracking.experiment import HIDDEN
from grpo_pipeline.tracking.served import save_served
from grpo_pipeline.tracking.store import (
    SQLITE,
    MlflowConfig,
    is_made,
    is_server,
    parse_config,
    redact,
    tracking_uri,
)

# Export a finished arm's newest model as a folder that MLflow can load and serve.


def trained_arms(project: Path, task: str, *, env: str | None) -> TrainedArms:
    """Return a task's models of a project's environment, where its catalogue says they are."""
    catalog = ReplacingConfigLoader(
        conf_source=str(project / "conf"), env=env, **CONFIG_LOADER_ARGS
    )["catalog"]
    return recorded_arms(
        Path(os.path.abspath(project / catalog[f"{task}.predict.models"]["filepath"]))
    )


def export_arm(arms: TrainedArms, arm: str, *, target: Path) -> Path:
    """Write an arm's newest model to a folder that does not exist yet, complete or not at all; return the model's own folder.

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


def read_config(project: Path, *, env: str | None) -> MlflowConfig:
    """Read mlflow.yml of a project's environment."""
    return parse_config(
        ReplacingConfigLoader(conf_source=str(project / "conf"), env=env, **CONFIG_LOADER_ARGS)[
            "mlflow"
        ]
    )


def main(arguments: Sequence[str] = ()) -> int:
    """Do what the command line asks for; without a command, open the store."""
    options = parse_arguments(arguments)
    project = find_kedro_project(Path.cwd())
    if project is None:
        print(
            f"the current folder must lie in a Kedro project, got {Path.cwd()}; change the folder",
            file=sys.stderr,
        )
        return 2
    env = getattr(options, "env", None) or os.environ.get("KEDRO_ENV")
    return (
        export(project, options, env=env)
        if options.command == "export"
        else open_store(project, env=env, port=options.port)
    )


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; ends the process with code 2 and the usage where it cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m grpo_pipeline.tracking", description=__doc__)
    parser.add_argument("--port", type=int, help="of the page; that of mlflow.yml if left out")
    commands = parser.add_subparsers(dest="command")
    exported = commands.add_parser(
        "export", help="write a finished arm's model as MLflow loads and serves it"
    )
    exported.add_argument(
        "--task",
        choices=[task for task in TASKS if serving_of(task) is not None],
        default=next(iter(TASKS)),
        help="of which task; %(default)s if left out",
    )
    exported.add_argument("--arm", required=True, help="whose newest model")
    exported.add_argument("--to", required=True, type=Path, help="folder to write; must not exist")
    exported.add_argument("--env", help="Kedro environment of the run; KEDRO_ENV if left out")
    return parser.parse_args(list(arguments))


def export(project: Path, options: argparse.Namespace, *, env: str | None) -> int:
    """Export a model and say how to use it."""
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


def open_store(project: Path, *, env: str | None, port: int | None) -> int:
    """Serve a local store until Ctrl-C; of a server, say where it is."""
    config = read_config(project, env=env)
    uri = tracking_uri(config, project, environ=os.environ)
    if is_server(uri):
        print(f"The runs are on {redact(uri)}, experiment {config.tracking.experiment.name}")
        return 0
    command = [
        "mlflow",
        "ui",
        "--backend-store-uri",
        uri,
        "--host",
        config.ui.host,
        "--port",
        str(port or config.ui.port),
    ]
    command += ["--workers", "1"]
    page = runs_page(uri, config.tracking.experiment.name)
    print(
        f"http://{config.ui.host}:{port or config.ui.port}/#/{page} shows {uri}; Ctrl-C ends it",
        flush=True,
    )
    return serve([sys.executable, "-m", *command])


# Without this MLflow opens what it has for language models: traces, judges, prompts.
TRAINING_VIEW = "workflowType=machine_learning"
VIEW = "verdicts"  # name of the view of the runs that is written into the experiment


def runs_page(uri: str, experiment: str) -> str:
    """Return the page of an experiment's runs, with verdict and primary metrics as columns; where it has none, of experiments."""
    from mlflow.tracking import MlflowClient

    if uri.startswith(SQLITE) and not is_made(Path(uri.removeprefix(SQLITE))):
        return f"experiments?{TRAINING_VIEW}"
    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return f"experiments?{TRAINING_VIEW}"
    runs = client.search_runs([found.experiment_id], f"tags.`{HIDDEN}columns` != ''")
    named = [name for run in runs for name in run.data.tags[f"{HIDDEN}columns"].split(",")]
    columns = ["tags.`verdict`", *(f"metrics.`{name}`" for name in dict.fromkeys(named))]
    view = {
        "selectedColumns": columns,
        "columnOrder": ["tags.`mlflow.runName`", *columns],
        "columnWidths": {columns[0]: 160},  # pixels
    }
    client.set_experiment_tag(
        found.experiment_id, f"mlflow.sharedViewState.{VIEW}", json.dumps(view)
    )
    return f"experiments/{found.experiment_id}/runs?{TRAINING_VIEW}&viewStateShareKey={VIEW}"


def serve(command: Sequence[str], *, seconds: float = 10.0) -> int:
    """Run a server until it ends, or until Ctrl-C or SIGTERM ends it with all processes that it has started.

    Args:
        command: program and arguments; it gets a process group of its own.
        seconds: that it has for its end before it is killed.

    Returns:
        Its exit status; 0 after Ctrl-C.

    Raises:
        SystemExit: with code 143 after SIGTERM.
    """
    with sigterm_raises():
        server = subprocess.Popen(command, start_new_session=True)
        try:
            return server.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    server.wait(timeout=seconds)
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
