"""The committed configuration in a folder of its own, and the data pipeline of a task run from it."""

import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from exported_models import export_models
from kedro.framework.context.context import _convert_paths_to_absolute_posix
from kedro.io import DataCatalog
from kedro.runner import SequentialRunner
from kedro.validation.parameter_validator import ParameterValidator

from grpo_pipeline.runs.config_loader import ReplacingConfigLoader
from grpo_pipeline.settings import CONFIG_LOADER_ARGS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Task -> folder of an arm with one version of its model."""
    return export_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def data_project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "conf", project / "conf", ignore=lambda folder, names: names if Path(folder).name == "local" else [])
    return project


@pytest.fixture
def run_data(data_project: Path) -> Callable[..., DataCatalog]:
    """``run_data(task, env, section)``: as ``kedro run --env <env> --params ...``; returns the catalogue."""

    def run(task: str, env: str, section: dict[str, Any] | None = None) -> DataCatalog:
        pipeline = import_module(f"grpo_pipeline.tasks.{task}.pipelines").create_pipeline()
        runtime = {} if section is None else {task: section}
        # Reading the files of the other tasks takes twice as long as all the rest.
        own = {"parameters": [f"{task}/parameters*", "parameters.yml"], "catalog": [f"{task}/catalog*", "catalog.yml"]}
        given = CONFIG_LOADER_ARGS | {"config_patterns": CONFIG_LOADER_ARGS["config_patterns"] | own}
        loader = ReplacingConfigLoader(str(data_project / "conf"), env=env, runtime_params=runtime, **given)
        entries = {name: entry for name, entry in loader["catalog"].items() if name.startswith((f"{task}.", "{task}"))}
        catalog = DataCatalog.from_config(_convert_paths_to_absolute_posix(data_project, entries))
        parameters = ParameterValidator({"data": pipeline}).validate_raw_params(loader["parameters"])
        for name in pipeline.inputs():
            if name.startswith("params:"):
                catalog[name] = parameters[task][name.rpartition(".")[2]]
        SequentialRunner().run(pipeline, catalog)
        return catalog

    return run
