"""Set MLflow's defaults: its own are minutes of waiting for a server, output at INFO and reports of usage."""

from collections.abc import MutableMapping

MLFLOW_DEFAULTS = {
    "DO_NOT_TRACK": "true",
    "KEDRO_DISABLE_TELEMETRY": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_CONFIGURE_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # processes for jobs that nothing here sends
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",  # of each request, for each packet of its answer
}


def set_mlflow_defaults(environ: MutableMapping[str, str]) -> None:
    """Make MLflow quiet, quick to give up and silent about its use in this process; values that are already set stay."""
    for name, value in MLFLOW_DEFAULTS.items():
        environ.setdefault(name, value)
