"""Kedro-Viz opens each task on a few boxes, and an arm on its step: by its own answers, and in a browser."""

import base64
import inspect
import json
import os
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from browser import CHROMIUM
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro_processes import run
from opened_graph import open_graph
from parameter_models import read_parameters

from grpo_pipeline.pipeline_registry import register_pipelines
from grpo_pipeline.tasks import BUILT_IN, find_task

ROOT = Path(__file__).resolve().parents[1]
LAYERS = sorted(folder.name for folder in (ROOT / "data").glob("0*"))
BASE = read_parameters(ROOT / "conf", "base")
SPECS = {task: find_task(task).with_stages_of(BASE[task]) for task in BUILT_IN}
DOCUMENT = runpy.run_path(str(ROOT / "docs" / "pipeline_graph.py"))
# How large 1 is drawn in a window of 1440 x 900; Kedro-Viz writes names with 14 pixels.
READABLE = {"attention": 0.85, "dialogue": 0.6, "molecules": 0.6}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, make_project) -> Iterator[Any]:
    """``shown(task)`` is the page of a whole pipeline, ``shown.catalog`` what its data sets are."""
    from kedro_viz.api.rest.responses.pipelines import get_kedro_project_json_data
    from kedro_viz.data_access import data_access_manager
    from kedro_viz.server import populate_data

    project = make_project(tmp_path_factory.mktemp("graph") / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)
        patch.setattr(sys, "path", list(sys.path))  # opening a project changes both
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        bootstrap_project(project)
        with KedroSession.create(project_path=project) as session:
            catalog = session.load_context().catalog
    pipelines = register_pipelines()
    data_access_manager.reset_fields()
    populate_data(data_access_manager, catalog, {task: pipelines[task] for task in BUILT_IN}, {})
    pages = {task: get_kedro_project_json_data(task) for task in BUILT_IN}

    def page(task: str) -> Any:
        return pages[task]

    page.catalog, page.nodes = catalog, data_access_manager.nodes
    yield page
    data_access_manager.reset_fields()


def children(page: Any, box: str) -> dict[str, str]:
    """Return name -> type of what is drawn in a box, parameters left out, which are hidden at first."""
    names = {node["id"]: node["name"] for node in page["nodes"]}
    found = page["modular_pipelines"][box]["children"]
    return {names[child["id"]]: child["type"] for child in found if child["type"] != "parameters"}


def arrows(page: Any, among: set[str]) -> set[tuple[str, str]]:
    names = {node["id"]: node["name"] for node in page["nodes"]}
    found = {(names[edge["source"]], names[edge["target"]]) for edge in page["edges"]}
    return {arrow for arrow in found if {*arrow} <= among}


@pytest.mark.parametrize("task", BUILT_IN)
def test_a_task_opens_on_one_box_per_part(shown: Any, task: str) -> None:
    spec = SPECS[task]
    boxes = {name for name, kind in children(shown(task), "__root__").items() if kind == "modularPipeline"}
    parts = ("data", "audit", "evaluation", *(f"train_{name}" for name in (*spec.stages, *spec.arms)))
    assert boxes == {f"{task}-{part}" for part in parts}
    assert len(boxes) <= 8
    assert {name for name, kind in children(shown(task), "__root__").items() if kind == "task"} == set()


@pytest.mark.parametrize("task", BUILT_IN)
def test_every_dataset_that_it_opens_with_leads_from_a_box_to_a_box(shown: Any, task: str) -> None:
    drawn = children(shown(task), "__root__")
    found = arrows(shown(task), {*drawn})
    data = {name for name, kind in drawn.items() if kind == "data"}
    assert data - {target for _, target in found} == set()
    assert data - {source for source, _ in found} == {f"{task}.report"}
    assert len(data) <= 9


@pytest.mark.parametrize("task", BUILT_IN)
def test_layers_are_on_and_known(shown: Any, task: str) -> None:
    page = shown(task)
    assert page["layers"] == LAYERS
    assert {node["layer"] for node in page["nodes"] if node.get("layer")} <= {*LAYERS}
    opened = {node["name"]: node.get("layer") for node in page["nodes"] if node["name"] in children(page, "__root__")}
    assert opened[f"{task}.data"] == "05_model_input"
    assert opened[f"{task}.report"] == "08_reporting"


@pytest.mark.parametrize("task", BUILT_IN)
def test_a_training_shows_its_step_from_batch_to_update(shown: Any, task: str) -> None:
    page, spec = shown(task), SPECS[task]
    for part in (*spec.stages, *spec.arms):
        box = f"{task}-train_{part}"
        drawn = children(page, box)
        nodes = {name for name, kind in drawn.items() if kind == "task"}
        assert {"take_first_batch", "replicate_batch", "apply_update", "train"} <= nodes
        inner = {name.removeprefix(f"{box}.") for name, kind in drawn.items() if kind == "modularPipeline"}
        assert inner == {"start", "sample", "reward", "advantage", "loss", "export", "results"}
        # One leads to the next, through what lies between them.
        found = arrows(page, {*drawn})
        steps = ["take_first_batch", "replicate_batch", f"{box}.sample", f"{box}.reward", f"{box}.advantage", f"{box}.loss"]
        for before, after in zip(steps, [*steps[1:], "apply_update"], strict=True):
            made = {target for source, target in found if source == before}
            assert made & {source for source, target in found if target == after}, (before, after)


def test_kedro_viz_without_hooks_shows_the_parts_that_an_arm_has_and_no_others() -> None:
    code = (
        "import json, pathlib; from kedro_viz.integrations.kedro.data_loader import load_data\n"
        "_, pipelines, _ = load_data(pathlib.Path('.'))\n"
        "print(json.dumps([[node.namespace, node.short_name] for node in pipelines['attention'].nodes]))"
    )
    done = run(ROOT, code=code)
    assert done.returncode == 0, done.stderr
    pairs = json.loads(done.stdout.splitlines()[-1])
    of_arm = {arm: {name for place, name in pairs if f"train_{arm}" in str(place)} for arm in ("supervised", "grpo")}
    terms = {"supervised_term", "policy_term", "entropy_term", "kl_term", "value_term"}
    assert of_arm["supervised"] & terms == {"supervised_term"}
    assert of_arm["grpo"] & terms == terms
    for name in (
        "dynamic_sampling",
        "replay_groups",
        "score_again",
        "credit_decisions",
        "penalise_kl",
        "move_reference",
        "steer_entropy",
    ):
        assert name not in of_arm["grpo"] | of_arm["supervised"]


@pytest.mark.parametrize("task", BUILT_IN)
def test_every_node_and_dataset_says_what_it_is(shown: Any, task: str) -> None:
    from kedro_viz.models.flowchart.node_metadata import TaskNodeMetadata
    from kedro_viz.models.flowchart.nodes import TaskNode

    for node in register_pipelines()[task].nodes:
        assert inspect.getdoc(node.func), node.name
        for name in (name for name in (*node.inputs, *node.outputs) if not name.startswith("param")):
            said = shown.catalog.get(name).metadata["kedro-viz"]["description"]
            assert len(said.split()) <= 25, name
            assert not re.search(r"[{}]", said), name
    without_code = [
        node.full_name
        for node in shown.nodes.as_list()
        if isinstance(node, TaskNode) and not TaskNodeMetadata(task_node=node).code
    ]
    assert without_code == []


def test_a_value_in_memory_previews_what_it_is(shown: Any) -> None:
    from kedro_viz.models.flowchart.node_metadata import DataNodeMetadata
    from kedro_viz.models.flowchart.nodes import DataNode

    [node] = [node for node in shown.nodes.as_list() if isinstance(node, DataNode) and node.name == "attention.grpo.results"]
    told = DataNodeMetadata(data_node=node)
    assert (told.preview_type, told.preview) == ("TextPreview", node.kedro_obj.metadata["kedro-viz"]["description"])
    assert "grpo" in told.preview


@pytest.mark.parametrize("task", BUILT_IN)
def test_training_previews_a_picture_of_the_loop(shown: Any, task: str) -> None:
    from kedro_viz.models.flowchart.node_metadata import TaskNodeMetadata
    from kedro_viz.models.flowchart.nodes import TaskNode

    nodes = [node for node in shown.nodes.as_list() if isinstance(node, TaskNode) and node.name == "train"]
    assert {node.full_name for node in nodes} >= {f"{task}-train_{arm}.train" for arm in find_task(task).arms}
    kind, _, content = TaskNodeMetadata(task_node=nodes[0]).preview["content"].partition(";base64,")
    picture = base64.b64decode(content).decode()
    assert kind == "data:image/svg+xml"
    said = re.findall(r'font-weight="bold"[^>]*>([^<]+)<', picture)
    assert said == ["batch", "replicate", "sample", "reward", "advantage", "loss", "update"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, make_project) -> Path:
    """The static site of a project that has not run."""
    project = make_project(tmp_path_factory.mktemp("site") / "project")
    DOCUMENT["build_site"](project / "site", project)
    return project / "site"


@pytest.mark.slow
def test_the_site_has_eight_megabytes_at_most_and_loads_nothing_from_elsewhere(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8_000_000
    assert not [path.name for path in files if path.suffix in (".map", ".js")]
    assert "//" not in re.sub(r"[\"']\./|<!--.*?-->", "", (site / "index.html").read_text()).replace("</", "")
    pages = {path.name for path in (site / "api" / "pipelines").iterdir()}
    assert pages >= {"__default__", "dialogue", "molecules", "attention_predict"}
    assert pages.isdisjoint({"attention", "attention_train", "dialogue_step", "compare"})
    told = {path.name for path in (site / "api" / "nodes").iterdir()}
    for path in (site / "api" / "main", *(site / "api" / "pipelines").iterdir()):
        page = json.loads(path.read_text())
        assert {pipeline["id"] for pipeline in page["pipelines"]} == pages
        assert {node["id"] for node in page["nodes"] if node["type"] != "modularPipeline"} <= told


@pytest.mark.slow
@pytest.mark.parametrize("task", BUILT_IN)
def test_a_browser_opens_it_at_a_scale_that_can_be_read(site: Path, task: str) -> None:
    if CHROMIUM is None:
        pytest.skip("needs a Chromium on PATH, got none; on Debian: apt-get install chromium")
    first = next(iter(BUILT_IN))
    opened = open_graph(site, "" if task == first else f"?pid={task}")
    scale = float(re.search(r"scale\(([\d.]+)\)", opened["transform"])[1])
    assert scale >= READABLE[task], opened["transform"]
    boxes = {name.replace("​", "") for name in opened["drawn"]}
    assert {f"{task}-data", f"{task}-audit", f"{task}-train_grpo", f"{task}-evaluation", f"{task}.report"} <= boxes
    assert {"05_model_input", "08_reporting"} <= {*opened["layers"]}
