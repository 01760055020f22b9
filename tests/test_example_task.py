"""A task that is added without a change to any file of the project runs through every feature; its document tells the same."""

import json
import os
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from forked_kedro import kedro_command
from kedro_processes import clean_environ, newest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "tests" / "example_task"
DOCUMENT = ROOT / "docs" / "adding_a_task.md"
TOLD = ("pyproject.toml", "digits/task.py", "digits/pipeline.py", "conf/catalog.yml", "conf/parameters.yml")
LONGEST = {"digits": 120, "digits/pipeline.py": 40, "conf": 65}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, make_project: Callable[[Path], Path]) -> Path:
    """A project with the example's configuration beside its own, and the example as pip would have installed it."""
    project = make_project(tmp_path_factory.mktemp("example") / "project")
    for name in ("catalog", "parameters"):
        (project / f"conf/base/{name}/digits.yml").write_text((EXAMPLE / f"conf/{name}.yml").read_text())
    installed = project / "site" / "digits-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: digits\nVersion: 1.0\n")
    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in found.items()) for group, found in points.items()]
    (installed / "entry_points.txt").write_text("".join(lines))
    return project


def run(project: Path, pipeline: str, *options: str) -> "subprocess.CompletedProcess[str]":
    paths = [str(project / "site"), str(EXAMPLE), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = kedro_command("run", "--env", "smoke", "--pipelines", pipeline, *options)
    environ = clean_environ(PYTHONPATH=os.pathsep.join(paths))
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_the_example_runs_through_every_feature(project: Path) -> None:
    done = run(project, "digits")
    reports, output = project / "data/08_reporting/digits_smoke", project / "data/07_model_output/digits_smoke"
    comparison = json.loads(newest(reports / "comparison.json").read_text())
    assert comparison["n"] == {"examples": 80, "clusters": 80, "cluster": "digit_id"}
    assert comparison["baselines"]["uniform"]["metrics"]["reward"]["value"] == pytest.approx(0.1)
    assert min(comparison["arms"][arm]["metrics"]["accuracy"]["value"] for arm in ("supervised", "grpo")) > 0.5
    assert {"accuracy", "reward"} <= comparison["differences"]["grpo"].keys()
    assert "Accuracy of the likeliest guess" in (reports / "report.html").read_text()
    assert "accuracy" in done.stdout + done.stderr  # the table at the end of a run
    audit = json.loads((reports / "reward_audit/result.json").read_text())
    assert list(audit["policies"]) == ["start", "constant", "other_example"]
    for pipelines in ("digits_gradient_flow,digits_reward_audit,digits_compare", "digits_cross_validate,digits_predict"):
        run(project, pipelines)
    flow = pd.read_csv(reports / "grpo/gradient_flow.csv")
    assert set(flow["component"]) >= {"policy", "right"}
    result = json.loads(newest(reports / "compare/result.json").read_text())
    assert {trial["status"] for trial in result["trials"].values()} == {"finished"}
    assert set(result["arms"]["grpo"]["metrics"]) == {"accuracy", "reward"}
    folds = json.loads(newest(reports / "cross_validation/result.json").read_text())
    assert folds["n"] == {"examples": 320, "clusters": 320, "cluster": "digit_id", "folds": 2}
    assert folds["held_out"]["n"]["examples"] == 80
    samples = pd.read_csv(output / "predict/samples.csv", dtype=str)
    assert len(samples) == 80 * 3
    assert set(samples["actions"]) <= set("0123456789")
    # Ids such as 0001 are text, wherever they are read back.
    rows = pd.read_csv(output / "compare/trials/grpo.seed0/predictions.csv", dtype=str)
    assert set(rows["digit_id"].str.len()) == {4}


def test_a_new_arm_is_a_section_of_the_parameters(project: Path) -> None:
    """It is trained without the control, and the comparison says so; nothing that another arm left behind is read."""
    (project / "conf/smoke/parameters/digits_arm.yml").write_text(
        "digits: {plain: {base: grpo, algorithm: {advantage: {method: mean_only}}, training: {epochs: 1}}}\n"
    )
    done = run(project, "digits", "--params", "digits.arms=plain")
    reports = project / "data/08_reporting/digits_smoke"
    comparison = json.loads(newest(reports / "comparison.json").read_text())
    assert (list(comparison["arms"]), comparison["control"], comparison["differences"]) == (["plain"], "plain", {})
    said = "supervised, the control, was not trained in this run: nothing says what its reward has added."
    assert comparison["summary"][0] == said
    assert "supervised</b>, the control, was not trained" in (reports / "report.html").read_text()
    assert "plain" in done.stdout + done.stderr
    rows = [json.loads(line) for line in (project / "data/07_model_output/digits_smoke/plain/metric_rows.jsonl").open()]
    assert max(row["step"] for row in rows) < 20  # its own one epoch


def test_the_example_is_short() -> None:
    lines = {path: path.read_text().count("\n") for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".yml")}
    for name, longest in LONGEST.items():
        found = {path: n for path, n in lines.items() if path == EXAMPLE / name or EXAMPLE / name in path.parents}
        if name == "digits":
            found = {path: n for path, n in found.items() if path.name != "pipeline.py"}
        assert 0 < sum(found.values()) <= longest, (name, found)


def test_the_document_tells_the_example() -> None:
    text = DOCUMENT.read_text()
    for name in TOLD:
        assert (EXAMPLE / name).read_text().strip() in text, f"{DOCUMENT.name} must hold {name} as it is"
