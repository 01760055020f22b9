"""Every dataset and parameter of every registered pipeline is there on purpose, in every environment."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kedro.framework.context import KedroContext
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.io import DataCatalog
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.pipeline_registry import register_pipelines
from grpo_pipeline.pipelines.of_task import task_pipelines
from grpo_pipeline.runs.stored_datasets import is_in_place, is_versioned, moved, place_of
from grpo_pipeline.tasks import BUILT_IN, find_task

ROOT = Path(__file__).resolve().parents[1]
LAYERS = sorted(folder.name for folder in (ROOT / "data").glob("0*"))
ENVIRONMENTS = sorted(folder.name for folder in (ROOT / "conf").iterdir() if folder.is_dir() and folder.name != "base")
PIPELINES = register_pipelines()
# What a run has whose parameters switch every optional stage of a task on.
STAGED = {
    task: task_pipelines(replace(find_task(task), stages=find_task(task).optional_stages))[task]
    for task in BUILT_IN
    if find_task(task).optional_stages
}


Opened = Callable[[str], KedroContext]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, make_project) -> Iterator[Opened]:
    """``opened(env)``: the context of an environment; nothing is written into the project.

    Another one must not be opened before it was read: the resolvers of OmegaConf are those of the last.
    """
    project = make_project(tmp_path_factory.mktemp("catalog") / "project")

    def open_one(env: str) -> KedroContext:
        with KedroSession.create(project_path=project, env=env) as session:
            return session.load_context()

    with pytest.MonkeyPatch.context() as patch:  # opening a project changes both
        patch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)  # the same in less time
        patch.setattr(sys, "path", list(sys.path))
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        bootstrap_project(project)
        yield open_one


@pytest.fixture(scope="module")
def catalog(opened: Opened) -> DataCatalog:
    return opened("smoke").catalog


@pytest.fixture(scope="module")
def entries(opened: Opened) -> dict[str, Any]:
    return opened("smoke").config_loader["catalog"]


def test_kedros_own_session_has_the_arms_and_stages_of_its_parameters(opened: Opened) -> None:
    """``KedroSession.create``, as a notebook has it, and not the session of the settings: nothing is left out in silence."""
    from kedro.framework.project import pipelines

    opened("busi_outlined")
    names = {node.name for node in pipelines["attention_train"].nodes}
    assert any(name.startswith("attention-train_pretraining.") for name in names)
    opened("busi")
    names = {node.name for node in pipelines["attention_train"].nodes}
    assert not any(name.startswith("attention-train_pretraining.") for name in names)
    assert any(name.startswith("attention-train_prior.") for name in names)


def names_of(*pipelines: Pipeline) -> set[str]:
    return {re.sub(r"@\w+$", "", name) for pipeline in pipelines for name in pipeline.datasets()}


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_dataset_has_an_entry(opened: Opened, env: str) -> None:
    """A dataset without an entry would silently become a memory dataset, and a parameter would be missing."""
    catalog = opened(env).catalog
    misspelt = Pipeline([Node(shutil.copy, ["attention.examples", "params:atention.data"], "attention.exmaples")])
    known, of_stages = names_of(*PIPELINES.values()), names_of(*STAGED.values())
    missing = {name for name in known | of_stages | names_of(misspelt) if name not in catalog}
    assert known & missing == set()
    assert {name for name in of_stages & missing if not name.startswith("params:")} == set()
    assert names_of(misspelt) & missing == {"attention.exmaples", "params:atention.data"}


def test_no_pattern_catches_everything(entries: dict[str, Any]) -> None:
    assert not [name for name in entries if not re.search(r"[a-z]", re.sub(r"\{[^}]*\}", "", name))]


@pytest.mark.parametrize("name", ["__default__", "attention", "dialogue", "molecules"])
def test_a_whole_pipeline_needs_nothing_but_stored_data_and_parameters(catalog: DataCatalog, name: str) -> None:
    free = {dataset for dataset in PIPELINES[name].inputs() if not dataset.startswith("params:") and dataset != "parameters"}
    assert sorted(dataset for dataset in free if dataset not in catalog) == []
    assert PIPELINES["__default__"].describe() == PIPELINES["attention"].describe()


def test_every_entry_is_used(catalog: DataCatalog, entries: dict[str, Any]) -> None:
    used = set().union(*(pipeline.datasets() for pipeline in (*PIPELINES.values(), *STAGED.values())))
    patterns = {catalog.config_resolver.match_dataset_pattern(name) for name in used}
    # An entry of conf/base/catalog.yml stands there for every task: one that uses it is enough.
    shared = {re.sub(r"^\w+", "{task}", name) for name in used | (patterns - {None})}
    assert sorted(name for name in entries.keys() - used - patterns if re.sub(r"^\w+", "{task}", name) not in shared) == []


def test_every_stored_dataset_lies_in_the_layer_it_names(entries: dict[str, Any]) -> None:
    """Without a layer is what another entry writes: a name for looking it up would turn Kedro-Viz's layers into a circle."""
    stored = {name: entry for name, entry in entries.items() if not entry["type"].endswith(".MemoryDataset")}
    layers = {name: ((entry.get("metadata") or {}).get("kedro-viz") or {}).get("layer") for name, entry in stored.items()}
    written = [stored[name]["filepath"] for name, layer in layers.items() if layer]
    looked_up = {name: stored[name]["filepath"] for name, layer in layers.items() if layer is None}
    assert {"attention.features_cache", "attention.{arm}.resume_from"} <= looked_up.keys()
    assert [name for name, path in looked_up.items() if not any(other.startswith(path) for other in written)] == []
    wrong = {name: layer for name, layer in layers.items() if layer and f"/{layer}/" not in stored[name]["filepath"]}
    assert (wrong, {*layers.values()} - {None} - {*LAYERS}) == ({}, set())


def test_kedro_viz_shows_the_layers_of_every_pipeline_in_their_order(catalog: DataCatalog, tmp_path: Path) -> None:
    """In what the static site reads: the namespaces that are drawn as boxes close cycles that the nodes alone do not have."""
    from kedro_viz.api.rest.responses.pipelines import get_kedro_project_json_data, get_pipeline_response
    from kedro_viz.data_access import data_access_manager
    from kedro_viz.server import populate_data

    populate_data(data_access_manager, catalog, PIPELINES, {})
    get_kedro_project_json_data()  # the site's first page, with whose boxes the others are drawn
    shown = {name: json.loads(get_pipeline_response(name).model_dump_json()) for name in PIPELINES}
    drawn = {name: {node["layer"] for node in page["nodes"] if node.get("layer")} for name, page in shown.items()}
    orders = {name: [layer for layer in page["layers"] if layer in drawn[name]] for name, page in shown.items()}
    assert {name: sorted(order) for name, order in orders.items()} == {name: sorted(layers) for name, layers in drawn.items()}
    whole = {"__default__", "attention", "dialogue", "molecules"}
    assert {name: orders[name] for name in whole} == dict.fromkeys(whole, LAYERS)
    assert all(drawn.values())


def test_node_names_are_unique_and_readable() -> None:
    names = [node.short_name for node in PIPELINES["__default__"].nodes]
    assert not [name for name in names if not re.fullmatch(r"[A-Za-z][A-Za-z ]+|[a-z]+(_[a-z0-9]+)*", name)]
    assert not [node.name for pipeline in PIPELINES.values() for node in pipeline.nodes if node._name is None]


def test_styles_name_nodes_and_datasets_that_exist() -> None:
    nodes = {node._name for pipeline in PIPELINES.values() for node in pipeline.nodes}
    datasets = set().union(*(pipeline.datasets() for pipeline in PIPELINES.values()))
    styles = json.loads((ROOT / ".viz" / "styles.json").read_text())
    assert sorted(styles.keys() - nodes - datasets) == []


def test_every_stored_dataset_is_replaced_as_a_whole_or_says_how_it_is_kept(catalog: DataCatalog, tmp_path: Path) -> None:
    """Each stored dataset waits for the end of its run, has a version of its own, or is replaced in one step by its dataset."""
    used = set().union(*(pipeline.datasets() for pipeline in (*PIPELINES.values(), *STAGED.values())))
    stored = {name: catalog.get(name) for name in sorted(used) if not name.startswith("param") and name in catalog}
    stored = {name: dataset for name, dataset in stored.items() if type(dataset).__name__ != "MemoryDataset"}
    assert [name for name, dataset in stored.items() if place_of(dataset) is None] == []
    kept = {type(dataset).__name__ for dataset in stored.values() if is_in_place(dataset) and not is_versioned(dataset)}
    assert kept == {
        *("TrialsDataset", "CheckpointDataset", "FeaturesDataset", "MetricStreamDataset", "TrainedArmsDataset"),
        *("DialogueFolderDataset", "ImageFolderDataset", "RawFileDataset"),
    }
    waiting = {name: dataset for name, dataset in stored.items() if not is_in_place(dataset)}
    places = {name: place_of(moved(dataset, tmp_path / name)) for name, dataset in waiting.items()}
    assert places == {name: tmp_path / name for name in waiting}
    assert {"attention.report", "attention.image_sheet", "dialogue.report", "molecules.report"} <= stored.keys()
    assert {"attention.report", "attention.examples", "attention.checked", "attention.data_report"} <= waiting.keys()
