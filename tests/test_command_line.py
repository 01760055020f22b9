"""Commands of the project beside Kedro's, as a user calls them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from forked_kedro import kedro_command
from kedro_processes import clean_environ, run
from PIL import Image

from grpo_pipeline.cli import cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def call(project: Path, *args: str, folder: str = ".") -> "subprocess.CompletedProcess[str]":
    command = kedro_command(*args)
    return subprocess.run(
        command, cwd=project / folder, env=clean_environ(), capture_output=True, text=True, timeout=300, check=False
    )


def classes(folder: Path, *, shades: int) -> None:
    """Write 16 images of each of two classes; with one shade they show nothing."""
    draw = np.random.default_rng(0)
    for name in ("cancer", "healthy"):
        (folder / name).mkdir(parents=True)
        for n in range(16):
            Image.fromarray(draw.integers(9, 9 + shades, (24, 24), np.uint8)).save(folder / name / f"{name}{n}.png")


def test_a_folder_of_images_is_described_and_read(project: Path, tmp_path: Path) -> None:
    classes(tmp_path / "scans", shades=200)
    done = call(project, "new-data", str(tmp_path / "scans"), folder="conf")  # from any folder of the project
    assert done.returncode == 0, done.stderr
    assert "- 32 images in 2 folders, one per class; index.csv lists them" in done.stdout
    assert "Train with: grpo run --task attention --env scans" in done.stdout
    splits = json.loads((project / "data/03_primary/attention_scans/splits.json").read_text())
    assert sum(len(splits[part]) for part in ("train", "val", "test")) == 32
    assert "deprecated" not in done.stderr
    sheet = project / "data/08_reporting/attention_scans/examples.png"
    assert f"Look at {sheet}: a few examples of each class, as the run sees them" in done.stdout
    with Image.open(sheet) as picture:
        assert picture.width > 5 * picture.height  # eight images side by side


def test_what_the_data_stage_refuses_is_one_sentence(project: Path, tmp_path: Path) -> None:
    classes(tmp_path / "scans", shades=1)
    done = call(project, "new-data", str(tmp_path / "scans"), "--name", "flat")
    assert done.returncode == 1
    assert "must show something" in done.stderr
    assert "Traceback" not in done.stderr
    again = call(project, "new-data", str(tmp_path / "scans"), "--name", "flat")
    assert again.returncode == 1
    assert "flat must not exist yet" in again.stderr
    wrong = call(project, "new-data", str(tmp_path / "scans"), "--column", "label")
    assert (wrong.returncode, "--column must be KEY=COLUMN, got label" in wrong.stderr) == (2, True)


def test_a_file_of_prompts_is_named_itself(project: Path, tmp_path: Path) -> None:
    for name in ("asked", "more"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"prompt": f"{n}+1=", "answer": n + 1}) for n in range(20)))
    done = call(project, "new-data", str(tmp_path / "asked.jsonl"), "--no-run")
    assert done.returncode == 0, done.stderr
    assert "20 of 20 rows of asked.jsonl can be read" in done.stdout
    assert "dialogue_examples: asked.jsonl" in (project / "conf" / "asked" / "globals.yml").read_text()
    assert not (project / "data" / "02_intermediate" / "dialogue_asked").exists()


def test_a_project_that_init_has_made_knows_its_parameters(tmp_path: Path) -> None:
    made = CliRunner().invoke(cli, ["init", str(tmp_path / "mine")])
    assert made.exit_code == 0, made.output
    done = run(tmp_path / "mine", "--task", "attention", "--params", "attention.training.epochs=0")
    assert done.returncode == 1
    assert "attention.training.epochs must be greater than or equal to 1, got 0" in done.stderr


def test_the_package_is_a_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grpo_pipeline", "new-data", "--help"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "grpo new-data ../clinic --positive malignant" in done.stdout
