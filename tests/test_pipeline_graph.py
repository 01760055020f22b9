"""The static site of the pipeline graph is small, and holds no table of patients unless it is asked for."""

import gzip
import json
import runpy
from pathlib import Path

import pytest

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


def test_columns_that_the_parameters_name_count_as_columns_of_patients(tmp_path: Path) -> None:
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


def node(name: str, *pipelines: str, kind: str = "task") -> dict[str, object]:
    return {"id": name, "type": kind, "pipelines": [*pipelines]}


def test_a_pipeline_that_is_a_part_of_another_is_left_out_with_what_only_it_shows(tmp_path: Path) -> None:
    held = {"__default__": "ab", "task": "ab", "task_train": "b", "other": "bc", "same": "bc"}
    for folder in ("pipelines", "nodes"):
        (tmp_path / "api" / folder).mkdir(parents=True)
    for name, tasks in held.items():
        nodes = [node(task, *held) | {"parameters": {"seed": 0}} for task in tasks] + [
            node(f"data_of_{name}", *held, kind="data")
        ]
        page = {"selected_pipeline": name, "pipelines": [{"id": one} for one in held], "nodes": nodes}
        (tmp_path / "api" / "pipelines" / name).write_text(json.dumps(page, indent=2))
        (tmp_path / "api" / "nodes" / f"data_of_{name}").write_text("{}")
        if name == "__default__":
            (tmp_path / "api" / "main").write_text(json.dumps(page))
    runpy.run_path(str(DOCUMENT))["drop_parts"](tmp_path)
    kept = {path.name: json.loads(path.read_text()) for path in (tmp_path / "api" / "pipelines").iterdir()}
    assert kept.keys() == {"__default__", "other"}
    assert json.loads((tmp_path / "api" / "main").read_text()) == kept["__default__"]
    assert kept["other"]["pipelines"] == [{"id": "__default__"}, {"id": "other"}]
    assert kept["other"]["nodes"][0] == node("b", "__default__", "other") | {"parameters": {}}
    assert {path.name for path in (tmp_path / "api" / "nodes").iterdir()} == {"data_of___default__", "data_of_other"}


def test_the_largest_previews_are_left_out_until_the_site_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "api" / "nodes").mkdir(parents=True)
    for name, length in {"small": 100, "large": 3000, "larger": 4000}.items():
        told = {"filepath": f"{name}.png", "preview": "x" * length, "preview_type": "ImagePreview"}
        (tmp_path / "api" / "nodes" / name).write_text(json.dumps(told))
    (tmp_path / "api" / "nodes" / "code").write_text(json.dumps({"code": "y" * 5000}))
    drop = runpy.run_path(str(DOCUMENT))["drop_large_previews"]
    # 5000 of code and 7100 of previews with a little around them: without the larger one some 8400 are left.
    assert drop(tmp_path, 9000) == ["larger.png"]
    assert "larger.png" in capsys.readouterr().out
    nodes = {path.name: json.loads(path.read_text()) for path in (tmp_path / "api" / "nodes").iterdir()}
    assert nodes["larger"] == {"filepath": "larger.png", "preview": None, "preview_type": None}
    assert [len(nodes[name]["preview"]) for name in ("small", "large")] == [100, 3000]
    assert (drop(tmp_path, 9000), capsys.readouterr().out) == ([], "")


def test_the_page_unpacks_the_script_that_was_packed(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    for name in ("index-a1.js", "mermaid-b2.js"):
        (tmp_path / "assets" / name).write_text("run()" * 1000)
    pack = runpy.run_path(str(DOCUMENT))["pack_script"]
    page = pack(tmp_path, '<head><script type="module" crossorigin src="./assets/index-a1.js"></script></head>')
    assert [path.name for path in (tmp_path / "assets").iterdir()] == ["index-a1.packed"]
    assert gzip.decompress((tmp_path / "assets" / "index-a1.packed").read_bytes()) == b"run()" * 1000
    assert 'fetch("./assets/index-a1.packed")' in page
    assert "index-a1.js" not in page
    with pytest.raises(RuntimeError, match="must load one script"):
        pack(tmp_path, "<head></head>")


def test_a_run_builds_no_site() -> None:
    """It takes longer than many a run, and has megabytes."""
    recipe = (DOCUMENT.parents[1] / "Makefile").read_text().partition("\nrun: ")[2].partition("\n\n")[0]
    assert "$(KEDRO) run $(RUN_FLAGS)" in recipe
    assert "pipeline_graph" not in recipe
