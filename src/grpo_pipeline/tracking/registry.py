"""Register models, choose the champion among them by the validation split, and fetch a registered model.

A task has one registered model in each experiment. Its versions are the models of the arms, the last weights and the best ones.
``champion`` is the version with the best validation value on the data of the last run; the test split has no part in it.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from grpo_pipeline.core.storage.weights import HEADER
from grpo_pipeline.tracking.addresses import redact
from grpo_pipeline.tracking.served import KeptModel
from grpo_pipeline.tracking.store import root_cause, used_store

CHAMPION = "champion"
METRIC, VALUE, DATA = "validation.metric", "validation.value", "data"  # tags of a version
PAGE = 100


def register(
    client: MlflowClient,
    name: str,
    kept: KeptModel,
    *,
    model: str,
    run: str,
    tags: Mapping[str, str],
) -> None:
    """Register a logged model as the next version of a registered model, which is created if it is missing."""
    try:
        client.create_registered_model(name, description=about(kept.task))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    # Not models:/<id>: a store in a database would look that up in MLflow's default store.
    source = client.get_logged_model(model).artifact_location
    scored = {METRIC: kept.metric, VALUE: repr(float(kept.value))} if kept.metric else {}
    client.create_model_version(
        name,
        source,
        run_id=run,
        model_id=model,
        tags={**tags, **scored},
        description=kept.text,
        await_creation_for=0,
    )


def about(task: str) -> str:
    """Describe the versions of a registered model, and the champion among them."""
    return (
        f"Models of the task {task}: of each arm the last weights and those of its best validation. **{CHAMPION}** is the "
        "version with the best value on the validation split of the data of the last run. The test split has no part in it."
    )


def set_champion(client: MlflowClient, name: str, *, metric: str, data: str) -> None:
    """Give the champion's alias to the best version by a validation metric on these data; of equal ones the first keeps it."""
    found = [
        version
        for version in _versions(client, name)
        if version.tags.get(METRIC) == metric and version.tags.get(DATA) == data
    ]
    if found:
        best = max(found, key=lambda one: (float(one.tags[VALUE]), -int(one.version)))
        client.set_registered_model_alias(name, CHAMPION, str(best.version))


def _versions(client: MlflowClient, name: str) -> Iterator[ModelVersion]:
    token = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", PAGE, page_token=token)
        yield from page
        if not (token := page.token):
            return


def _place(client: MlflowClient, name: str) -> tuple[str, str]:
    """Resolve a registered name to its version, and find the files of this version."""
    name, _, alias = name.partition("@")
    if alias:
        name = f"{name}/{client.get_model_version_by_alias(name, alias).version}"
    if "/" in name:
        return name, client.get_model_version_download_uri(*name.split("/", 1))
    return name, client.get_logged_model(name).artifact_location


def fetch(address: str, folder: Path) -> Path:
    """Download the weights of a registered model of the project's store; the alias is read once.

    Args:
        address: ``models:/<name>@<alias>``, ``models:/<name>/<version>`` or ``models:/<id of a logged model>``.
        folder: where to put them; must exist.

    Returns:
        The folder of the weights, as an arm has written it, in a folder named like the version.

    Raises:
        FileNotFoundError: if there is no such model, or it is none of this project.
    """
    import mlflow.artifacts

    uri = used_store()
    try:
        client = MlflowClient(uri)
        name, place = _place(client, address.removeprefix("models:/"))
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            # Not the address itself: MLflow would look it up in its own default store.
            found = mlflow.artifacts.download_artifacts(
                f"{place}/artifacts", dst_path=partial, tracking_uri=uri
            )
            [header] = Path(found).glob(f"*/{HEADER}")
            target = folder / "model" / name.replace("/", "-version-") / "model"
            target.parent.mkdir(parents=True, exist_ok=True)
            return Path(shutil.move(header.parent, target))
    except (MlflowException, OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{address} must be a model that a run has registered in {redact(uri)}, got: {root_cause(error)}; grpo ui shows "
            "which there are"
        ) from error


def fetch_of_run(run: str, folder: Path) -> Path:
    """Download the weights that an arm's run has logged: its last ones, or what ``training.keep`` chose.

    Args:
        run: id of the run in the project's store.
        folder: where to put them; must exist.

    Raises:
        FileNotFoundError: if there is no such run, or it has logged no model.
    """
    try:
        outputs = MlflowClient(used_store()).get_run(run).outputs
    except MlflowException as error:
        raise FileNotFoundError(
            f"{run} must be the id of a run in {redact(used_store())}, got: {root_cause(error)}; grpo ui shows which there are"
        ) from error
    models = outputs.model_outputs if outputs else []
    if not models:
        raise FileNotFoundError(
            f"run {run} must have logged a model, got none; name the run of an arm, below that of the command"
        )
    return fetch(f"models:/{models[0].model_id}", folder)
