"""A small data set on disk that a test may spoil, and the parameters that read it."""

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, read_manifest
from grpo_pipeline.tasks.attention.data.params import DataParams

ROOT = Path(__file__).resolve().parents[3]
HEADER = ("core_id", "patient_id", "center", "image", "region_mask", "bag_mask", "lesion_mask", "label", "involvement",
          "grade_group", "age", "psa", "psa_density", "family_history")  # fmt: skip


@dataclass
class DataSet:
    """Six patients with two cores each; rows and files may be changed before ``open`` writes the manifest."""

    root: Path
    rows: list[dict[str, str]] = field(default_factory=list)

    def open(self) -> ImageFolder:
        path = self.root / "manifest.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(self.rows[0]))
            writer.writeheader()
            writer.writerows(self.rows)
        return ImageFolder(self.root, read_manifest(path), path)

    def save(self, relpath: str, array: np.ndarray) -> None:
        path = self.root / relpath
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, array, allow_pickle=False)
        else:
            Image.fromarray(array.astype(np.uint8) * 255 if array.dtype == bool else array).save(path)


def rectangle(top: int, bottom: int, left: int, right: int) -> np.ndarray:
    mask = np.zeros((24, 32), bool)
    mask[top:bottom, left:right] = True
    return mask


@pytest.fixture
def data_set(tmp_path: Path) -> DataSet:
    data = DataSet(tmp_path / "root")
    rng = np.random.default_rng(0)
    for number in range(12):
        core, label = f"c{number:02d}", number % 2
        data.save(f"images/{core}.png", rng.integers(0, 256, (24, 32), dtype=np.uint8))
        data.save(f"region/{core}.png", rectangle(4, 20, 4, 28))
        data.save(f"needle/{core}.png", rectangle(10, 13, 0, 20))
        if label:
            data.save(f"lesion/{core}.png", rectangle(8, 14, 6, 12))
        paths = [f"{name}/{core}.png" for name in ("images", "region", "needle")] + [f"lesion/{core}.png" if label else ""]
        truth = (str(label), "0.4" if label else "0", str(3 * label))
        clinical = (str(60 + number), f"{5 + number / 10:.1f}", "0.12", "0")
        values = (core, f"p{number // 2}", "ab"[number // 2 % 2], *paths, *truth, *clinical)
        data.rows.append(dict(zip(HEADER, values, strict=True)))
    return data


@pytest.fixture
def data_params() -> Callable[..., DataParams]:
    """``data_params(**changes)``: the committed base parameters for a user's own data; nested changes are merged."""

    def make(**changes: Any) -> DataParams:
        base = yaml.safe_load((ROOT / "conf/base/attention/parameters_data.yml").read_text())["attention"]["data"]
        values = base | {"source": "manifest", "root": "root", "image_size": 32}
        for name, change in changes.items():
            values[name] = {**(values.get(name) or {}), **change} if isinstance(change, dict) else change
        return DataParams.model_validate(values)

    return make


@pytest.fixture
def folder(tmp_path: Path) -> ImageFolder:
    """A data root that holds a manifest of one row and no image yet."""
    (tmp_path / "m.csv").write_text("a,b\n1,2\n")
    return ImageFolder(tmp_path, read_manifest(tmp_path / "m.csv"), tmp_path / "m.csv")
