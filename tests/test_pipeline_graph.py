"""The static site of the pipeline graph holds no table of patients unless it is asked for."""

import json
import runpy
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "pipeline_graph.py"
PATIENTS = {"index": [0], "columns": ["row", "patient_id"], "data": [[2, "Smith"]]}
OWN_NAMES = {"index": [0], "columns": ["MRN"], "data": [["Smith"]]}
RESULTS = {"index": [0], "columns": ["arm", "auroc"], "data": [["grpo", 0.8]]}


def test_tables_of_patients_are_dropped_and_others_stay(tmp_path: Path) -> None:
    nodes = {
        "checked": {"type": "table.TableDataset", "preview": PATIENTS, "preview_type": "TablePreview"},
        "raw": {"type": "datasets.image_folder.ImageFolderDataset", "preview": OWN_NAMES, "preview_type": "TablePreview"},
        "table": {"type": "table.TableDataset", "preview": RESULTS, "preview_type": "TablePreview"},
        "figure": {"type": "figure.FigureDataset", "preview": "aGk=", "preview_type": "ImagePreview"},
        "node": {"code": "def f(): ..."},
    }
    (tmp_path / "api" / "nodes").mkdir(parents=True)
    for name, node in nodes.items():
        (tmp_path / "api" / "nodes" / name).write_text(json.dumps(node))
    assert runpy.run_path(str(DOCUMENT))["drop_patient_tables"](tmp_path) == 2
    found = {name: json.loads((tmp_path / "api" / "nodes" / name).read_text()) for name in nodes}
    assert [name for name, node in found.items() if node != nodes[name]] == ["checked", "raw"]
    assert "Smith" not in json.dumps(found)


def test_columns_that_the_parameters_name_are_columns_of_patients_in_this_project_too(tmp_path: Path) -> None:
    section = {"data": {"columns": {"image": "file", "patient_id": "MRN", "clinical": ["Gleason", "prostate_ml"]}}}
    for env, parameters in {"base": {"task": section, "seed": 0}, "mine": {}, "local": {}}.items():
        (tmp_path / "conf" / env).mkdir(parents=True)
        (tmp_path / "conf" / env / "parameters.yml").write_text(json.dumps(parameters))
    document = runpy.run_path(str(DOCUMENT))
    columns = document["own_columns"](tmp_path, "mine")
    assert columns == {"mrn", "gleason", "prostate_ml"}
    (tmp_path / "api" / "nodes").mkdir(parents=True)
    volumes = {"preview": {"columns": ["row", "Prostate_ml"], "index": [0], "data": [[1, 43.2]]}, "preview_type": "TablePreview"}
    (tmp_path / "api" / "nodes" / "volumes").write_text(json.dumps(volumes))
    assert document["drop_patient_tables"](tmp_path) == 0
    assert document["drop_patient_tables"](tmp_path, columns) == 1
    assert {"age", "psa", "patient_id"} <= document["own_columns"](DOCUMENT.parents[1], "")
    assert "similarity_group" in document["own_columns"](DOCUMENT.parents[1], "busi")
    (tmp_path / "conf" / "heirs").mkdir()
    (tmp_path / "conf" / "heirs" / "globals.yml").write_text("extends: mine")
    (tmp_path / "conf" / "mine" / "parameters.yml").write_text(json.dumps({"task": {"data": {"columns": {"patient_id": "NHS"}}}}))
    assert document["own_columns"](tmp_path, "heirs") == {"nhs", "gleason", "prostate_ml"}


def test_the_box_of_the_task_opens_unfolded_and_nothing_is_left_out(tmp_path: Path) -> None:
    boxes = [{"id": name, "type": "modularPipeline"} for name in ("task.data", "task.arm")]
    tree = {
        "__root__": {"children": [{"id": "raw", "type": "data"}, {"id": "task", "type": "modularPipeline"}]},
        "task": {"children": [*boxes, {"id": "unread", "type": "data"}]},
        "task.data": {"children": [{"id": "check", "type": "task"}]},
        "task.arm": {"children": [{"id": "train", "type": "task"}]},
    }
    names = ["raw", "task", "task.data", "task.arm", "unread", "check", "train"]
    arrows = [("raw", "task"), ("task", "unread"), ("raw", "task.data"), ("task.data", "unread"), ("check", "train")]
    page = {
        "nodes": [{"id": name} for name in names],
        "edges": [{"source": source, "target": target} for source, target in arrows],
        "layers": ["01_raw"],
        "modular_pipelines": tree,
    }
    file = tmp_path / "page"
    file.write_text(json.dumps(page))
    unfold = runpy.run_path(str(DOCUMENT))["unfold_outermost"]
    unfold(file)
    found = json.loads(file.read_text())
    assert [node["id"] for node in found["nodes"]] == [name for name in names if name != "task"]
    assert [(edge["source"], edge["target"]) for edge in found["edges"]] == arrows[2:]
    assert found["layers"] == ["01_raw"]
    assert [child["id"] for child in found["modular_pipelines"]["__root__"]["children"]] == [
        "raw",
        "task.data",
        "task.arm",
        "unread",
    ]
    assert found["modular_pipelines"].keys() == tree.keys() - {"task"}
    unfold(file)  # two boxes now: they stay
    assert json.loads(file.read_text()) == found
