"""Open a local MLflow store in a browser, on the page of the project's runs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from grpo_pipeline.runs.config_loader import ReplacingConfigLoader
from grpo_pipeline.session import sigterm_raises
from grpo_pipeline.settings import CONFIG_LOADER_ARGS
from grpo_pipeline.tracking.addresses import is_server, redact
from grpo_pipeline.tracking.database import is_made
from grpo_pipeline.tracking.experiment import HIDDEN
from grpo_pipeline.tracking.mlflow_config import MlflowConfig, parse_config
from grpo_pipeline.tracking.store import SQLITE, tracking_uri

# Without this, MLflow opens its pages for language models: traces, judges, prompts.
TRAINING_VIEW = "workflowType=machine_learning"

VIEW = "verdicts"  # name of the view of the runs that is written into the experiment


def read_config(project: Path, *, env: str | None) -> MlflowConfig:
    """Read mlflow.yml of a project's environment."""
    return parse_config(
        ReplacingConfigLoader(conf_source=str(project / "conf"), env=env, **CONFIG_LOADER_ARGS)[
            "mlflow"
        ]
    )


def open_store(project: Path, *, env: str | None, port: int | None) -> int:
    """Serve a local store until Ctrl-C; for a server, print its address."""
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


def runs_page(uri: str, experiment: str) -> str:
    """Build the address of an experiment's runs, with verdict and primary metrics as columns; without it, of all experiments."""
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
        seconds: time to end before it is killed.

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
