"""Real images by configuration only: a part of BUSI, and a data set configured from docs/attention/data.md alone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from case_folders import FRAMES, write_cases
from kedro_processes import run
from PIL import Image
from told_answers import unmarked

SMALL = (
    "attention.data.image_size=64,attention.model.encoder.width=16,attention.model.encoder.heads=2,"
    "attention.model.mask_decoder.heads=2,attention.model.mask_decoder.channels=16,attention.model.policy.channels=16,"
    "attention.training.epochs=1,attention.training.group_size=2,attention.training.validation_samples=2,"
    "attention.grpo.algorithm.update_epochs=1,attention.evaluation.resamples=50,"
    "attention.reward_audit.rows=6,attention.reward_audit.n_samples=4,attention.training.animation_frames=0"
)
# A process takes as long to begin as an arm to train; one test here has them, as the environments do.
SERIAL = f"{SMALL},executor.kind=serial"


def comparison(project: Path, folder: str) -> dict:
    [path] = (project / "data/08_reporting" / folder / "comparison.json").glob("*/comparison.json")
    return json.loads(path.read_text())


@pytest.mark.slow
def test_a_part_of_busi_from_a_folder_of_its_layout(project: Path, shared_data: Callable[[str], Path]) -> None:
    source, root = shared_data("busi"), project.parent / "shared" / "data" / "busi"
    index = pd.read_csv(source / "index.csv", dtype=str, keep_default_na=False).iloc[::24]
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
        for name in index["file"]:
            shutil.copy(source / folder / name, root / folder / name)
    index.to_csv(root / "index.csv", index=False)
    done = run(project, "--params", SMALL, env="busi")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads((project / "data/02_intermediate/attention_busi/data_report.json").read_text())
    assert (report["rows"], report["usable"], report["patients"]) == (len(index), len(index), index["similarity_group"].nunique())
    assert report["cores_by_label"]["1"] == (index["class"] == "malignant").sum()
    assert report["bags_replaced_by_region"] == 0  # labels of whole images: no image has a bag mask
    document = comparison(project, "attention_busi")
    assert document["arms"]["grpo"]["metrics"]["auroc"]["value"] is not None
    assert document["arms"]["grpo"]["metrics"]["auroc_gg2"]["value"] is None
    splits = json.loads((project / "data/03_primary/attention_busi/splits.json").read_text())
    groups = index.assign(core=index["file"].str.removesuffix(".png")).set_index("core")["similarity_group"]
    parts = [set(groups[cores]) for cores in splits.values()]
    assert sum(map(len, parts)) == len(set().union(*parts))
    done = run(project, "--pipelines", "attention_predict", env="busi")
    assert (done.returncode, done.stderr) == (0, "")
    scores = pd.read_csv(project / "data/07_model_output/attention_busi/predict/scores.csv")
    assert len(scores) == len(index)
    assert scores["prob"].between(0, 1).all()
    for env in ("busi", "busi_outlined"):  # what each loss term teaches is what the environment expects
        done = run(
            project, "--pipelines", "gradient_flow", "--params", f"{SMALL},attention.gradient_flow.warmup_steps=3", env=env
        )
        assert (done.returncode, done.stderr) == (0, "")


GLOBALS = """
attention_folder: attention_mine
attention_root: ../clinic
attention_manifest: cases.csv
"""
PARAMETERS = """
attention:
  data:
    source: manifest
    columns:
      core_id: null
      patient_id: subject
      center: site
      image: file
      region_mask: gland
      bag_mask: null
      lesion_mask: null
      label: diagnosis
      involvement: percent
      grade_group: null
      split: null
      clinical: [age]
    folders:
      image: scans
    label:
      positive: [cancer]
      negative: null
    involvement_unit: percent
"""


SETS = (
    (("normal",), ("calcified",), ("cyst",), ("cyst", "calcified")),
    (("mass",), ("calcified", "mass"), ("distortion", "cyst"), ("mass", "distortion")),
)


def write_clinic(root: Path) -> pd.DataFrame:
    """Write 16-bit PNG and float NPY images of odd sizes with gland masks, and their table."""
    rng, rows = np.random.default_rng(0), []
    for folder in ("scans", "glands"):
        (root / folder).mkdir(parents=True)
    for number in range(36):
        height, width = int(rng.integers(41, 97)), int(rng.integers(33, 131))
        label, name = number % 2, f"{number:03d}"
        image = rng.rayleigh(0.2 + 0.1 * label, (height, width)).clip(0, 1)
        if number % 3:
            file = f"{name}.png"
            Image.fromarray((image * 65535).astype(np.uint16)).save(root / "scans" / file)
        else:
            file = f"{name}.npy"
            np.save(root / "scans" / file, image.astype(np.float32), allow_pickle=False)
        gland = np.zeros((height, width), np.uint8)
        gland[height // 5 : -height // 5, width // 6 : -width // 6] = 7
        Image.fromarray(gland).save(root / "glands" / f"{name}.png")
        rows.append(
            {
                "subject": f"S{number // 2 % 12}", "site": "north" if number // 2 % 12 < 6 else "south", "file": file,
                "gland": f"glands/{name}.png", "diagnosis": "cancer" if label else f"benign {number}",
                "percent": 10 + number if label else 0, "age": "" if number == 5 else 50 + number,
                "findings": "; ".join(SETS[label][number // 2 % 4]),
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
    table.to_csv(root / "cases.csv", index=False)
    return table


def test_a_data_set_of_ones_own_is_read(project: Path) -> None:
    """It is trained on below, with another label."""
    table = write_clinic(project.parent / "clinic")
    (project / "conf/mine").mkdir(parents=True)
    (project / "conf/mine/globals.yml").write_text(GLOBALS)
    (project / "conf/mine/parameters.yml").write_text(PARAMETERS)
    done = run(project, "--pipelines", "attention_data", "--params", SMALL, env="mine")
    assert (done.returncode, done.stderr) == (0, "")
    checked = pd.read_csv(project / "data/02_intermediate/attention_mine/checked.csv", dtype={"core_id": str})
    assert checked["core_id"].tolist() == [f"{number:03d}" for number in range(36)]
    assert checked["label"].tolist() == [number % 2 for number in range(36)]
    assert checked["involvement"].tolist() == pytest.approx((table["percent"].astype(float) / 100).tolist())
    assert set(checked["center"]) == {"north", "south"}
    images = np.load(project / "data/05_model_input/attention_mine/examples/images.npy")
    assert images.shape == (36, 64, 64)
    assert images.dtype == np.uint8
    assert images.max(axis=(1, 2)).min() > 100  # 16 bits are scaled, not cut


ANY = "attention.split.single_class=allow,attention.reward_audit.no_ceiling=warn"
CASES = {"attention_folder": "attention_cases", "attention_root": "../cases", "attention_manifest": "*/info.json"}


def documented(root: Path, begins: str) -> dict:
    """Return the YAML block of docs/attention/data.md that begins with a line."""
    text = (root / "docs/attention/data.md").read_text().partition(f"```yaml\n{begins}\n")[2].partition("```")[0]
    return yaml.safe_load(f"{begins}\n{text}")


def test_images_with_several_findings_are_learned_and_scored(project: Path, root: Path) -> None:
    table = write_clinic(project.parent / "clinic")
    (project / "conf/mine").mkdir(parents=True)
    (project / "conf/mine/globals.yml").write_text(GLOBALS)
    section = yaml.safe_load(PARAMETERS)
    told = documented(root, "attention:  # several findings of an image")
    section["attention"]["data"]["label"] = told["attention"]["data"]["label"]
    section["attention"]["data"]["columns"]["label"] = "findings"
    (project / "conf/mine/parameters.yml").write_text(yaml.safe_dump(section, sort_keys=False))
    done = run(project, "--params", f"{SERIAL},{ANY},attention.training.animation_frames=2", env="mine")
    assert done.returncode == 0
    warned = "must hold cores with and without each finding, got "  # of two patients in val
    assert [line for line in done.stderr.splitlines() if warned not in line] == []
    checked = pd.read_csv(project / "data/02_intermediate/attention_mine/checked.csv")
    names = ["mass", "calcified", "cyst", "distortion"]
    assert checked["findings"].tolist() == [
        sum(1 << names.index(n) for n in SETS[i % 2][i // 2 % 4] if n in names) for i in range(36)
    ]
    assert checked["label"].tolist() == [number % 2 for number in range(36)]
    metrics = comparison(project, "attention_mine")["arms"]["grpo"]["metrics"]
    assert {f"auroc_finding_{name}" for name in names} | {"exact_match", "wrong_findings", "auroc"} <= metrics.keys()
    assert not {"accuracy", "balanced_accuracy", "kappa_quadratic"} & metrics.keys()
    assert 0 <= metrics["wrong_findings"]["value"] <= 4
    assert metrics["lesion_hit"]["value"] is None
    assert metrics["auroc"]["n"] > 0
    page = unmarked((project / "data/08_reporting/attention_mine/report.html").read_text())
    assert len(page) > 100_000
    assert "AUROC of the finding distortion" in page
    assert "against the other classes" not in page
    [path] = (project / "data/07_model_output/attention_mine/grpo/predictions.csv").glob("*/predictions.csv")
    rows = pd.read_csv(path).query("rule == 'policy'")
    positive = rows[["prob_mass", "prob_distortion"]].to_numpy()
    np.testing.assert_allclose(1 - (1 - positive).prod(1), rows["prob"], atol=1e-5)

    done = run(project, "--pipelines", "attention_predict", env="mine")
    assert (done.returncode, done.stderr) == (0, "")
    scores = pd.read_csv(project / "data/07_model_output/attention_mine/predict/scores.csv")
    assert len(scores) == len(table)
    assert list(scores.columns[-4:]) == [f"prob_{name}" for name in names]


def test_a_folder_per_case_with_frames_is_trained_on_and_scored(project: Path, root: Path) -> None:
    write_cases(project.parent / "cases", 24)
    (project / "conf/cases").mkdir(parents=True)
    (project / "conf/cases/globals.yml").write_text(yaml.safe_dump(CASES))
    section = documented(root, "attention:  # a folder per case, several frames")
    (project / "conf/cases/parameters.yml").write_text(yaml.safe_dump(section))
    done = run(project, "--params", f"{SERIAL},{ANY}", env="cases")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads((project / "data/02_intermediate/attention_cases/data_report.json").read_text())
    assert (report["rows"], report["cores"], report["frames"], report["patients"]) == (72, 24, 72, 12)
    assert report["cores_by_label"] == {"0": 12, "1": 12}
    assert report["unknown"]["age"] == FRAMES
    splits = json.loads((project / "data/03_primary/attention_cases/splits.json").read_text())
    assert sorted(core for cores in splits.values() for core in cores) == [f"case{number:02d}" for number in range(24)]
    document = comparison(project, "attention_cases")
    assert document["n"]["examples"] == len(splits["test"])
    assert document["arms"]["grpo"]["metrics"]["auroc_patient"]["n"] == len(splits["test"]) / 2
    assert document["arms"]["grpo"]["metrics"]["reader_auroc"]["value"] == 1
    [path] = (project / "data/07_model_output/attention_cases/grpo/predictions.csv").glob("*/predictions.csv")
    rows = pd.read_csv(path).query("rule == 'policy'")
    assert len(rows) == FRAMES * len(splits["test"])
    assert rows["frame"].tolist() == [0, 1, 2] * len(splits["test"])
    mean = rows.groupby("core_id").agg({"prob": "mean", "label": "first"})
    assert document["arms"]["grpo"]["metrics"]["brier"]["value"] == pytest.approx(((mean["prob"] - mean["label"]) ** 2).mean())
    [path] = (project / "data/06_models/attention_cases/grpo/calibration.json").glob("*/calibration.json")
    assert json.loads(path.read_text())["n"] == len(splits["val"])

    done = run(project, "--pipelines", "attention_predict", env="cases")
    assert (done.returncode, done.stderr) == (0, "")
    folder = project / "data/07_model_output/attention_cases/predict"
    frames, cores, patients = (pd.read_csv(folder / f"{name}.csv") for name in ("frames", "scores", "patients"))
    assert (len(frames), len(cores), len(patients)) == (72, 24, 12)
    np.testing.assert_allclose(cores.set_index("core_id")["prob"], frames.groupby("core_id")["prob"].mean())
    np.testing.assert_allclose(patients.set_index("patient_id")["prob"], cores.groupby("patient_id")["prob"].max())
    assert len(list((folder / "heatmaps").glob("*.png"))) == 72
    assert {"core_id", "frame", "set"} <= set(pd.read_csv(folder / "points.csv").columns)
