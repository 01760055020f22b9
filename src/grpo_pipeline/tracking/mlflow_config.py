"""Declare the parameters of tracking: ``mlflow.yml``.

The keys under ``server``, ``tracking`` and ``ui`` have kedro-mlflow's names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_pipeline.tracking.addresses import is_server


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Server(_Section):
    """The address of the store."""

    mlflow_tracking_uri: str | None = Field(
        None, description="URI of a server or database; null: mlflow.db in the project"
    )


class DisableTracking(_Section):
    """Names of pipelines that are not tracked."""

    pipelines: tuple[str, ...] = Field(
        (), description="a run of these pipelines only is not tracked"
    )


class ExperimentKwargs(_Section):
    """The arguments for creating an experiment."""

    artifact_location: str | None = Field(
        None, description="URI or absolute path; null: mlruns in the project, or the server's"
    )


class Experiment(_Section):
    """The experiment of the runs."""

    name: str = Field("grpo_pipeline", min_length=1, description="created where it does not exist")
    create_experiment_kwargs: ExperimentKwargs = ExperimentKwargs()


class RunName(_Section):
    """The name of a run."""

    name: str | None = Field(None, description="name of the parent run; null: the pipelines' names")


class DictParams(_Section):
    """How nested parameters are named."""

    sep: str = Field(
        ".",
        min_length=1,
        max_length=2,
        description="stands between the levels of a parameter's name",
    )


class Params(_Section):
    """How parameters are logged."""

    dict_params: DictParams = DictParams()
    long_params_strategy: Literal["truncate", "tag"] = Field(
        "truncate", description="what happens to a long value"
    )


class Tracking(_Section):
    """The names and limits of entries in MLflow."""

    disable_tracking: DisableTracking = DisableTracking()
    experiment: Experiment = Experiment()
    run: RunName = RunName()
    params: Params = Params()


class Ui(_Section):
    """Where ``python -m grpo_pipeline.tracking`` serves the store."""

    host: str = "127.0.0.1"
    port: int = Field(5000, ge=1, le=65535)


class MlflowConfig(_Section):
    """All of ``mlflow.yml``; patterns are shell patterns (``*``) over catalogue names, ``metrics`` over metrics."""

    server: Server = Server()
    tracking: Tracking = Tracking()
    ui: Ui = Ui()
    sigterm_grace_seconds: float = Field(
        9.0, gt=0, description="how long SIGTERM is held up to write what is queued"
    )
    inputs: tuple[str, ...] = Field((), description="datasets with a digest, logged as inputs")
    metrics: tuple[str, ...] = Field(
        ("*",), description="metrics of the training rows that are shown as curves"
    )
    artifacts: tuple[str, ...] = Field(
        (), description="datasets whose file is logged when it is saved"
    )
    models: tuple[str, ...] = Field(
        (), description="models logged in the form that MLflow can load and serve, and registered"
    )
    tables: tuple[str, ...] = Field(
        (), description="tables shown in MLflow, in addition to their file"
    )


def parse_config(raw: Mapping[str, Any]) -> MlflowConfig:
    """Check the content of ``mlflow.yml``.

    Raises:
        ValueError: naming the first key that is unknown or has a wrong value.
    """
    try:
        return MlflowConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key, problem = ".".join(map(str, first["loc"])), first["msg"][:1].lower() + first["msg"][1:]
        message = f"mlflow.yml: {key} must follow docs/tracking.md ({problem}), got {first['input']!r}; correct or remove the key"
        raise ValueError(message) from error


def artifact_location(config: MlflowConfig, project: Path, *, uri: str) -> str | None:
    """Find the place of a new experiment's files; None leaves it to the server."""
    chosen = config.tracking.experiment.create_experiment_kwargs.artifact_location
    if chosen is None:
        return None if is_server(uri) else str(project / "mlruns")
    return chosen if "://" in chosen else str(project / chosen)
