"""The data pipeline under Kedro's own loader, validator, catalogue and runner, with the committed configuration."""

import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kedro.framework.context.context import _convert_paths_to_absolute_posix
from kedro.io import DataCatalog
from kedro.runner import SequentialRunner
from kedro.validation.parameter_validator import ParameterValidator
from PIL import Image

from grpo_pipeline.pipelines.data.attention import create_pipeline
from grpo_pipeline.runs.replacing import ReplacingConfigLoader

ROOT = Path(__file__).resolve().parents[4]
STAGES = ("phantom", "data", "split")
GLOBALS = "data: data\nattention_folder: attention\n"


def make_project(folder: Path) -> Path:
    for file in ("catalog/attention.yml", "catalog/tasks.yml", "parameters/attention_data.yml"):
        (folder / "conf/base" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "conf/base" / file, folder / "conf/base" / file)
    (folder / "conf/base/globals.yml").write_text(GLOBALS)
    (folder / "conf/smoke/parameters").mkdir(parents=True)
    shutil.copy(ROOT / "conf/smoke/parameters/attention_data.yml", folder / "conf/smoke/parameters")
    shutil.copytree(ROOT / "conf/busi", folder / "conf/busi")
    return folder


@pytest.fixture
def data_project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


def prepare(project: Path, env: str, runtime: dict | None = None) -> DataCatalog:
    """Return the catalogue with its parameters, as ``kedro run --env <env> --params ...`` builds it."""
    merge = {"parameters": "soft"}
    loader = ReplacingConfigLoader(
        str(project / "conf"),
        env=env,
        base_env="base",
        default_run_env="smoke",
        merge_strategy=merge,
        runtime_params=runtime or {},
    )
    catalog = DataCatalog.from_config(_convert_paths_to_absolute_posix(project, loader["catalog"]))
    parameters = ParameterValidator({"data": create_pipeline()}).validate_raw_params(loader["parameters"])
    for stage in STAGES:
        catalog[f"params:attention.{stage}"] = parameters["attention"][stage]
    return catalog


def run(catalog: DataCatalog) -> DataCatalog:
    SequentialRunner().run(create_pipeline(), catalog)
    return catalog


def test_phantom_from_nothing_to_model_input(data_project, monkeypatch):
    monkeypatch.chdir(os.sep)
    catalog = run(prepare(data_project, "smoke"))
    examples, splits = catalog.load("attention.examples"), catalog.load("attention.splits")
    assert examples.images.shape == (42, 64, 64)
    for name in ("train", "val", "test"):
        rows = examples.rows(name)
        assert sorted(splits[name]) == examples.table.loc[rows, "core_id"].tolist()
        assert set(examples.table.loc[rows, "label"]) == {0, 1}
    raw = catalog.load("attention.raw")
    for i in (0, 20, 41):
        np.testing.assert_array_equal(examples.images[i], raw.read_image(examples.table.loc[i, "image"]))
        np.testing.assert_array_equal(examples.bag[i], raw.read_mask(examples.table.loc[i, "bag_mask"]))
    assert catalog.load("attention.generated")["cores"] == 42
    assert catalog.load("attention.quarantine").empty
    assert not list(data_project.rglob("*.partial*"))


def write_own_data(root: Path, *, groups: int = 18) -> None:
    """Images as BUSI has them: bare file names, masks of the same name, a near-duplicate group, some empty masks."""
    rng = np.random.default_rng(0)
    rows = []
    for group in range(groups):
        kind = ("benign", "malignant", "normal")[group % 3]
        for copy in range(2):
            name = f"{kind}_{group:03d}_{copy}.png"
            mask = np.zeros((40, 60), np.uint8)
            mask[10:20, 20:40] = 255 * (kind != "normal")
            for folder, array in (("images", rng.integers(0, 256, (40, 60), dtype=np.uint8)), ("masks", mask)):
                (root / folder).mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(root / folder / name)
            rows.append({"file": name, "class": kind, "similarity_group": group})
    pd.DataFrame(rows).to_csv(root / "index.csv", index=False)


@pytest.mark.parametrize("given", ["absolute", "relative"])
def test_own_images_by_configuration_only(data_project, tmp_path, monkeypatch, given):
    """``--env busi --params attention.data.root=<folder>``: relative to the project, wherever the command is started."""
    write_own_data(tmp_path / "own")
    monkeypatch.chdir(os.sep)
    root = str(tmp_path / "own") if given == "absolute" else "../own"
    catalog = run(prepare(data_project, "busi", {"attention": {"data": {"root": root}}}))
    examples = catalog.load("attention.examples")
    assert len(examples.table) == 36
    assert examples.table["label"].sum() == 12
    assert examples.table.groupby("patient_id")["split"].nunique().max() == 1
    assert catalog.load("attention.data_report")["bags_replaced_by_region"] == 12
    is_normal = examples.table["core_id"].str.startswith("normal").to_numpy()
    np.testing.assert_array_equal(examples.bag[is_normal], examples.region[is_normal])
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == ["images", "index.csv", "masks"]
    assert not (data_project / "data/01_raw/attention_busi/phantom").exists()


def test_root_from_globals(data_project, tmp_path):
    write_own_data(tmp_path / "own")
    settings = data_project / "conf/busi/globals.yml"
    settings.write_text(settings.read_text().replace("../shared/data/busi", "../own"))
    assert run(prepare(data_project, "busi")).load("attention.data_report")["usable"] == 36


def test_quarantine_reaches_its_file(data_project, tmp_path):
    write_own_data(tmp_path / "own")
    (tmp_path / "own/images/benign_000_0.png").write_bytes(b"no image")
    runtime = {"attention": {"data": {"root": "../own", "on_bad_row": "quarantine"}}}
    catalog = run(prepare(data_project, "busi", runtime))
    assert catalog.load("attention.quarantine").to_dict("records") == [
        {
            "row": "2",
            "core_id": "benign_000_0",
            "file": "images/benign_000_0.png",
            "reason": "'images/benign_000_0.png' must be a PNG or NPY image, got a file of another kind; convert it",
        }
    ]
    assert len(catalog.load("attention.examples").table) == 35


def test_real_busi(data_project, shared_data):
    """The committed mapping fits the real data set."""
    root = shared_data("busi")
    catalog = run(prepare(data_project, "busi", {"attention": {"data": {"root": str(root)}}}))
    report = catalog.load("attention.data_report")
    assert (report["rows"], report["quarantined"], report["cores_by_label"]) == (464, 0, {"0": 342, "1": 122})
    assert report["bags_replaced_by_region"] == 72
