"""Kedro hooks: MLflow tracking and the summary at the end of a run."""


class MlflowHooks:
    """Track a run in MLflow."""


class SummaryHooks:
    """Print the comparison at the end of a run."""

    def __init__(self, mlflow: MlflowHooks) -> None:
        self._mlflow = mlflow
