"""The worked example of docs/attention/data.md does what it says, word for word."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from grpo_pipeline.tasks.attention.data.example_building import build_examples
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, read_manifest
from grpo_pipeline.tasks.attention.data.manifest import check_manifest
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.split_params import SplitParams
from grpo_pipeline.tasks.attention.data.splits import split_cores

ROOT = Path(__file__).resolve().parents[4]
BASE = yaml.safe_load((ROOT / "conf/base/attention/parameters_data.yml").read_text())["attention"]
TEXT = (ROOT / "docs/attention/data.md").read_text(encoding="utf-8")


def block(before: str, language: str) -> str:
    found = re.search(rf"{re.escape(before)}\n\n```{language}\n(.*?)```", TEXT, flags=re.DOTALL)
    if found is None:
        pytest.fail(f"docs/attention/data.md has no {language} block after {before!r}")
    return found.group(1)


def documented_params() -> DataParams:
    own = yaml.safe_load(block("`conf/clinic/parameters.yml`", "yaml"))["attention"]["data"]
    merged = {name: BASE["data"][name] | value if isinstance(value, dict) else value for name, value in own.items()}
    return DataParams.model_validate(BASE["data"] | merged | {"root": "clinic_a", "image_size": 32})


def write_documented_data(root: Path) -> None:
    """The three rows of the example, repeated for twelve more subjects."""
    header, *lines = (line.split(",") for line in block("and `cases.csv` starts with", "csv").splitlines())
    rows = [dict(zip(header, cells, strict=True)) for cells in lines]
    for number in range(4, 28):
        name, subject = f"{number:04d}", f"S{number // 2 + 2:02d}"
        rows.append(rows[number % 2] | {"case": name, "png": f"{name}.png", "subject": subject})
    rng, white = np.random.default_rng(0), np.full((20, 30), 255, np.uint8)
    for folder in ("bmode", "gland", "trace"):
        (root / folder).mkdir(parents=True)
        for row in rows:
            array = rng.integers(0, 256, (20, 30), dtype=np.uint8) if folder == "bmode" else white
            Image.fromarray(array).save(root / folder / row["png"])
    pd.DataFrame(rows).to_csv(root / "cases.csv", index=False)


def test_worked_example(tmp_path):
    write_documented_data(tmp_path / "clinic_a")
    name = yaml.safe_load(block("`conf/clinic/globals.yml`", "yaml"))["attention_manifest"]
    path = tmp_path / "clinic_a" / name
    raw, params = ImageFolder(path.parent, read_manifest(path), path), documented_params()
    checked, quarantine, report = check_manifest(raw, {"source": "manifest", "cores": 0}, params)
    assert quarantine.empty
    assert report["cores_by_center"] == {"north": 26, "south": 1}
    first = checked.iloc[0]
    assert (first["core_id"], first["patient_id"], first["label"]) == ("0001", "S01", 1)
    assert (first["involvement"], first["grade_group"], first["psa_ng_ml"]) == (0.35, 2.0, 7.1)
    assert (first["image"], first["region_mask"], first["bag_mask"]) == ("bmode/0001.png", "gland/0001.png", "trace/0001.png")
    examples, described = build_examples(raw, checked, split_cores(checked, SplitParams.model_validate(BASE["split"])), params)
    unknown = examples.table.loc[examples.table["psa_ng_ml"].isna(), "split"]
    assert len(unknown) == 1
    assert described["psa_ng_ml"]["unknown"] == (unknown == "train").sum()
    assert len(examples.table) == 27
