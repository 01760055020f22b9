"""Write single entries to an MLflow store; the writer's thread calls these functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from grpo_pipeline.runs.process import is_gone
from grpo_pipeline.tracking.flat_parameters import batches, shorten

MAX_METRICS_PER_CALL = 1000

MAX_PER_CALL = 100

MAX_TAG_LENGTH = 5000

# The 4xx codes about the client, not the entry: no rights, too many requests.
NOT_OF_THE_ENTRY = (401, 403, 429)

# Visible tags. MLflow's pages hide names that begin with "mlflow.", and so the others get that prefix.
VISIBLE = {"task", "arm", "seed", "env", "fold", "verdict", "ended", "error.type", "error.message"}

HIDDEN = "mlflow.grpo."

# A new experiment of this kind opens on trained models; without a kind its page asks for one.
KIND = {"mlflow.experimentKind": "custom_model_development"}


class NotOpenedError(RuntimeError):
    """The store could not be opened, so that no entry can be written."""


def is_refusal(error: BaseException) -> bool:
    """Check whether the store refused an entry (a 4xx, or an unsendable value), or did not answer."""
    if not isinstance(error, MlflowException):
        return isinstance(error, LookupError | TypeError | ValueError | AttributeError)
    code = int(error.get_http_status_code())  # type: ignore[no-untyped-call]
    return 400 <= code < 500 and code not in NOT_OF_THE_ENTRY


def tag_names(tags: Mapping[str, str]) -> dict[str, str]:
    """Rename tags for the store: those that only programs and searches read are hidden."""
    return {
        name if name in VISIBLE or name.startswith("mlflow.") else HIDDEN + name: value
        for name, value in tags.items()
    }


def find_experiment(client: MlflowClient, name: str, *, artifacts: str | None) -> str:
    """Find the id of an experiment; a missing one is created, a deleted one restored."""
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts, tags=KIND))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another run may have been faster
            if found is None:
                raise
    if found.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def reopen_run(client: MlflowClient, run: str) -> Run | None:
    """Set an ended run back to RUNNING; returns its earlier state, or None if it no longer exists."""
    try:
        before = client.get_run(run)
        client.update_run(run, status="RUNNING")
    except MlflowException as error:
        if is_refusal(error):
            return None
        raise
    return before


def end_stale_runs(
    client: MlflowClient, experiment_id: str, *, project: str, is_local_store: bool
) -> None:
    """Mark the runs of a project that a kill or a power cut left RUNNING as KILLED."""
    for run in client.search_runs(
        [experiment_id], "attributes.status = 'RUNNING'", max_results=200
    ):
        tags = {name.removeprefix(HIDDEN): value for name, value in run.data.tags.items()}
        is_ours = tags.get("project.path") == project and tags.get("process.pid", "").isdigit()
        if is_ours and is_gone(tags, is_local_store=is_local_store):
            client.set_tag(run.info.run_id, "ended", "its process was found dead by a later run")
            client.set_terminated(run.info.run_id, "KILLED")


def log_params(
    client: MlflowClient, run: str, params: Mapping[str, str], *, tag_long: bool
) -> None:
    """Log the parameters that a run does not hold yet, because MLflow refuses changes, such as after a resume."""
    known = client.get_run(run).data.params
    new = {name: value for name, value in params.items() if name not in known}
    for batch in batches(
        [Param(name, shorten(value)) for name, value in new.items()], MAX_PER_CALL
    ):
        client.log_batch(run, params=batch)
    if tag_long:
        log_tags(
            client, run, {name: value for name, value in new.items() if shorten(value) != value}
        )


def log_tags(client: MlflowClient, run: str, tags: Mapping[str, str]) -> None:
    """Set tags, in as few calls as MLflow's limit allows."""
    for batch in batches(
        [RunTag(name, value[:MAX_TAG_LENGTH]) for name, value in tag_names(tags).items()],
        MAX_PER_CALL,
    ):
        client.log_batch(run, tags=batch)


def log_metrics(client: MlflowClient, run: str, metrics: Sequence[Metric]) -> None:
    """Log points of metrics, in as few calls as MLflow's limit allows."""
    for batch in batches(metrics, MAX_METRICS_PER_CALL):
        client.log_batch(run, metrics=batch)


def logged_values(client: MlflowClient, run: str, name: str) -> dict[int, float]:
    """Map step -> value of a metric that a run holds; of several values at a step, the last."""
    history: Sequence[Any] = client.get_metric_history(run, name)
    return {metric.step: metric.value for metric in history}
