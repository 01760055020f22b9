"""The data pipeline under Kedro's own loader, validator, catalogue and runner, with the committed configuration."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kedro.io import DataCatalog
from PIL import Image

Run = Callable[..., DataCatalog]


@pytest.fixture
def run(run_data: Run) -> Run:
    return partial(run_data, "attention")


def test_phantom_from_nothing_to_model_input(run, data_project, monkeypatch):
    monkeypatch.chdir(os.sep)
    catalog = run("smoke")
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


@pytest.mark.parametrize("env", ["busi", "busi_outlined"])
def test_own_images_by_configuration_only(run, data_project, tmp_path, monkeypatch, env):
    """``--env busi --params attention.data.root=<folder>``: relative to the project, wherever the command is started."""
    write_own_data(tmp_path / "own")
    monkeypatch.chdir(os.sep)
    catalog = run(env, {"data": {"root": str(tmp_path / "own") if env == "busi" else "../own"}})
    examples = catalog.load("attention.examples")
    assert len(examples.table) == 36
    assert examples.table["label"].sum() == 12
    assert examples.table.groupby("patient_id")["split"].nunique().max() == 1
    report, is_normal = catalog.load("attention.data_report"), examples.table["core_id"].str.startswith("normal").to_numpy()
    shown = 24 if env == "busi_outlined" else 0
    assert (report["bags_replaced_by_region"], report["bags_that_are_the_lesion_outline"]) == (shown // 2, shown)
    assert examples.lesion[~is_normal].any((1, 2)).all()
    bag = np.where(is_normal[:, None, None] | (env == "busi"), examples.region, examples.lesion)
    np.testing.assert_array_equal(examples.bag, bag)
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == ["images", "index.csv", "masks"]
    assert not (data_project / f"data/01_raw/attention_{env}/phantom").exists()


def test_the_root_from_globals_and_a_broken_image_in_the_quarantine(run, data_project, tmp_path):
    write_own_data(tmp_path / "own")
    (tmp_path / "own/images/benign_000_0.png").write_bytes(b"no image")
    settings = data_project / "conf/busi/globals.yml"
    settings.write_text(settings.read_text().replace("../shared/data/busi", "../own"))
    catalog = run("busi", {"data": {"on_bad_row": "quarantine"}})
    reason = "'images/benign_000_0.png' must be a PNG or NPY image, got a file of another kind; convert it"
    refused = {"row": "2", "core_id": "benign_000_0", "file": "images/benign_000_0.png", "reason": reason}
    assert catalog.load("attention.quarantine").to_dict("records") == [refused]
    assert len(catalog.load("attention.examples").table) == 35
