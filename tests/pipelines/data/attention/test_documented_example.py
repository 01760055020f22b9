"""The worked example of docs/data.md does what it says, word for word."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from grpo_pipeline.tasks.attention.data.examples import build_examples
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder, read_manifest
from grpo_pipeline.tasks.attention.data.manifest import check_manifest
from grpo_pipeline.tasks.attention.data.params import ColumnParams, DataParams, FolderParams, LabelParams, SplitParams
from grpo_pipeline.tasks.attention.data.splits import split_cores

ROOT = Path(__file__).resolve().parents[4]
TEXT = (ROOT / "docs/data.md").read_text(encoding="utf-8")


def block(before: str, language: str) -> str:
    found = re.search(rf"{re.escape(before)}\n\n```{language}\n(.*?)```", TEXT, flags=re.DOTALL)
    if found is None:
        pytest.fail(f"docs/data.md has no {language} block after {before!r}")
    return found.group(1)


def documented_params() -> DataParams:
    base = yaml.safe_load((ROOT / "conf/base/parameters/attention_data.yml").read_text())["attention"]["data"]
    own = yaml.safe_load(block("`conf/clinic/parameters/attention_data.yml`", "yaml"))["attention"]["data"]
    merged = {name: base[name] | value if isinstance(value, dict) else value for name, value in own.items()}
    return DataParams.model_validate(base | merged | {"root": "clinic_a", "image_size": 32})


def write_documented_data(root: Path) -> None:
    """The three rows of the example, repeated for twelve more subjects."""
    lines = block("and `cases.csv` starts with", "csv").splitlines()
    header, first = lines[0].split(","), [line.split(",") for line in lines[1:]]
    rows = [dict(zip(header, cells, strict=True)) for cells in first]
    for number in range(4, 28):
        template = rows[number % 2]
        name = f"{number:04d}"
        rows.append(template | {"case": name, "png": f"{name}.png", "subject": f"S{number // 2 + 2:02d}"})
    root.mkdir()
    pd.DataFrame(rows).to_csv(root / "cases.csv", index=False)
    rng = np.random.default_rng(0)
    for folder in ("bmode", "gland", "trace"):
        (root / folder).mkdir()
        for row in rows:
            array = rng.integers(0, 256, (20, 30), dtype=np.uint8) if folder == "bmode" else np.full((20, 30), 255, np.uint8)
            Image.fromarray(array).save(root / folder / row["png"])


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
    split = yaml.safe_load((ROOT / "conf/base/parameters/attention_data.yml").read_text())["attention"]["split"]
    examples, described = build_examples(raw, checked, split_cores(checked, SplitParams.model_validate(split)), params)
    unknown = examples.table.loc[examples.table["psa_ng_ml"].isna(), "split"]
    assert len(unknown) == 1
    assert described["psa_ng_ml"]["unknown"] == (unknown == "train").sum()
    assert len(examples.table) == 27


def test_the_example_names_every_column_key_and_every_setting_is_documented():
    own = yaml.safe_load(block("`conf/clinic/parameters/attention_data.yml`", "yaml"))["attention"]["data"]
    assert set(own["columns"]) == set(ColumnParams.model_fields)
    names = [name for model in (ColumnParams, DataParams, FolderParams, LabelParams) for name in model.model_fields]
    assert [name for name in names if not re.search(rf"[`.]{name}`|{name}\.|`{name}", TEXT)] == []
