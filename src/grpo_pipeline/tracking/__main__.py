"""``python -m grpo_pipeline.tracking``: open this project's MLflow store in a browser, wherever mlflow.yml says it is."""

import os
import subprocess
import sys
from pathlib import Path

from kedro.config import OmegaConfigLoader
from kedro.utils import find_kedro_project

from grpo_pipeline.settings import CONFIG_LOADER_ARGS
from grpo_pipeline.tracking.config import MlflowConfig, parse_config
from grpo_pipeline.tracking.store import is_server, redact, tracking_uri


def read_config(project: Path, *, env: str | None) -> MlflowConfig:
    """Read mlflow.yml of a project's environment."""
    return parse_config(OmegaConfigLoader(conf_source=str(project / "conf"), env=env, **CONFIG_LOADER_ARGS)["mlflow"])


def main() -> int:
    """Serve a local store until Ctrl-C; of a server, say where it is."""
    project = find_kedro_project(Path.cwd())
    if project is None:
        print(f"the current folder must lie in a Kedro project, got {Path.cwd()}; change the folder", file=sys.stderr)
        return 2
    config = read_config(project, env=os.environ.get("KEDRO_ENV"))
    uri = tracking_uri(config, project, environ=os.environ)
    if is_server(uri):
        print(f"The runs are on {redact(uri)}, experiment {config.tracking.experiment.name}")
        return 0
    command = ["mlflow", "ui", "--backend-store-uri", uri, "--host", config.ui.host, "--port", str(config.ui.port)]
    command += ["--workers", "1"]
    print(f"http://{config.ui.host}:{config.ui.port} shows {uri}; Ctrl-C ends it")
    try:
        return subprocess.run([sys.executable, "-m", *command], check=False).returncode
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
