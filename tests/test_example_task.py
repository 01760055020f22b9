"""Tasks that are added without a change to any file of the project run through every feature; their document tells the same.

``digits`` takes one decision a sample. ``reverse`` writes sequences that stop, pays an exact KL, and has a stage before its arms.
"""

import json
import math
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
from forked_kedro import kedro_command
from kedro.pipeline import Pipeline
from kedro_processes import clean_environ, newest
from told_answers import unmarked

from grpo_pipeline.pipelines.of_task import task_pipelines

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = {name: ROOT / "tests" / folder for name, folder in {"digits": "example_task", "reverse": "example_sequences"}.items()}
DOCUMENT = ROOT / "docs" / "adding_a_task.md"
TOLD = ("pyproject.toml", "{}/spec.py", "{}/task.py", "{}/pipeline.py", "conf/catalog.yml", "conf/parameters.yml")
LONGEST = {"digits": 120, "digits/pipeline.py": 40, "digits/conf": 20}
LONGEST |= {"reverse": 220, "reverse/pipeline.py": 45, "reverse/conf": 20}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, make_project: Callable[[Path], Path]) -> Path:
    """A project with the examples' configuration beside its own, and the examples as pip would have installed them."""
    project = make_project(tmp_path_factory.mktemp("example") / "project")
    for example, folder in EXAMPLES.items():
        (project / f"conf/base/{example}").mkdir()
        for name in ("catalog", "parameters"):
            (project / f"conf/base/{example}/{name}.yml").write_text((folder / f"conf/{name}.yml").read_text())
        installed = project / "site" / f"{example}-1.0.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {example}\nVersion: 1.0\n")
        points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
        entries = {group: "".join(f"{name} = {value}\n" for name, value in found.items()) for group, found in points.items()}
        lines = [f"[{group}]\n{listed}" for group, listed in entries.items()]
        (installed / "entry_points.txt").write_text("".join(lines))
    return project


def environ_of(project: Path) -> dict[str, str]:
    paths = [str(project / "site"), *map(str, EXAMPLES.values()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return clean_environ(PYTHONPATH=os.pathsep.join(paths))


def run(project: Path, pipeline: str, *options: str, fails: bool = False) -> "subprocess.CompletedProcess[str]":
    command = kedro_command("run", "--env", "smoke", "--pipelines", pipeline, *options)
    given = {"capture_output": True, "text": True, "check": False, "timeout": 600}
    done = subprocess.run(command, cwd=project, env=environ_of(project), **given)
    assert (done.returncode != 0) == fails, done.stderr[-3000:]
    return done


def test_the_example_runs_through_every_feature(project: Path) -> None:
    done = run(project, "digits")
    reports, output = project / "data/08_reporting/digits_smoke", project / "data/07_model_output/digits_smoke"
    comparison = json.loads(newest(reports / "comparison.json").read_text())
    assert comparison["n"].items() >= {"examples": 80, "clusters": 80, "cluster": "digit_id"}.items()
    assert comparison["baselines"]["uniform"]["metrics"]["reward"]["value"] == pytest.approx(0.1)
    assert min(comparison["arms"][arm]["metrics"]["accuracy"]["value"] for arm in ("supervised", "grpo")) > 0.5
    assert {"accuracy", "reward"} <= comparison["differences"]["grpo"].keys()
    assert "Accuracy of the likeliest guess" in (reports / "report.html").read_text()
    assert "Accuracy of the likeliest guess" in done.stdout  # the table at the end of a run
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
    assert folds["n"].items() >= {"examples": 320, "clusters": 320, "cluster": "digit_id", "folds": 2}.items()
    assert folds["held_out"]["n"]["examples"] == 80
    samples = pd.read_csv(output / "predict/samples.csv", dtype=str)
    assert len(samples) == 80 * 4
    assert set(samples["actions"]) <= set("0123456789")
    # Ids such as 0001 are text, wherever they are read back.
    rows = pd.read_csv(output / "compare/trials/grpo.seed0/predictions.csv", dtype=str)
    assert set(rows["digit_id"].str.len()) == {4}


def test_a_new_arm_is_a_section_of_the_parameters(project: Path) -> None:
    """It is trained without the control, and the comparison says so; nothing that another arm left behind is read."""
    (project / "conf/smoke/parameters_digits.yml").write_text(
        "digits: {plain: {base: grpo, algorithm: {advantage: {method: mean_only}}, training: {epochs: 1}}}\n"
    )
    done = run(project, "digits", "--params", "digits.arms=plain")
    reports = project / "data/08_reporting/digits_smoke"
    comparison = json.loads(newest(reports / "comparison.json").read_text())
    assert (list(comparison["arms"]), comparison["control"], comparison["differences"]) == (["plain"], "plain", {})
    said = "supervised, the control, was not trained in this run: nothing says what its reward has added."
    assert comparison["summary"][0] == said
    assert "supervised</b>, the control, was not trained" in unmarked((reports / "report.html").read_text())
    assert "plain" in done.stdout + done.stderr
    rows = [json.loads(line) for line in (project / "data/07_model_output/digits_smoke/plain/metric_rows.jsonl").open()]
    assert max(row["step"] for row in rows) < 20  # its own one epoch


def test_sequences_with_a_stop_are_taught_by_a_stage_an_exact_kl_and_their_reward(project: Path) -> None:
    """In a folder that no file names, with micro-batches of unlike sizes."""
    run(project, "reverse", "--params", "reverse_folder=mine,reverse.training.micro_batch_size=7,reverse.training.epochs=2")
    comparison = json.loads(newest(project / "data/08_reporting/mine/comparison.json").read_text())
    assert comparison["baselines"]["copy"]["metrics"]["letters"]["value"] < 0.7
    assert min(comparison["arms"][arm]["metrics"]["letters"]["value"] for arm in ("supervised", "grpo")) > 0.7
    rows = [json.loads(line) for line in (project / "data/07_model_output/mine/grpo/metric_rows.jsonl").open()]
    trained = [row for row in rows if row["split"] == "train"]
    assert len(trained) == 2 * (len([1 for i in range(340) if i % 10 and i % 5 != 1]) // 32)
    assert max(abs(row["policy/ratio_first"] - 1) for row in trained) < 1e-5
    assert 0 < max(row["kl/reference"] for row in trained) < 1
    assert all(0 < row["policy/entropy"] < math.log(5) for row in trained)
    started = [json.loads(line) for line in (project / "data/07_model_output/mine/warm_start/metric_rows.jsonl").open()]
    assert started[0]["supervised/loss"] > 1.2 > 0.6 > trained[0]["supervised/loss"]  # five choices: log 5 at its start
    run(project, "reverse_gradient_flow,reverse_reward_audit,reverse_predict", "--params", "reverse_folder=mine")


def test_a_task_says_which_task_its_preparation_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in EXAMPLES.values():
        monkeypatch.syspath_prepend(str(folder))
    spec, wiring = import_module("digits.spec").SPEC, import_module("digits.pipeline")
    before = wiring.create_preparation()
    monkeypatch.setattr(wiring, "create_preparation", lambda: Pipeline(before, outputs={"digits.task": "digits.untrained_task"}))
    rule = "create_preparation of the task digits must lead to digits.task, got digits.data, digits.untrained_task; rename its"
    for stages in ((), ("warm_start",)):
        with pytest.raises(ValueError, match=rule):
            task_pipelines(replace(spec, stages=stages))


def test_listing_pipelines_beside_the_examples_imports_no_torch(project: Path) -> None:
    code = "import sys; sys.argv = ['kedro', 'registry', 'list']\nfrom kedro.framework.cli import main\ntry:\n    main()\n"
    code += "except SystemExit:\n    pass\nsys.stderr.write('torch' if 'torch' in sys.modules else 'light')"
    given = {"capture_output": True, "text": True, "check": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", code], cwd=project, env=environ_of(project), **given)
    assert {"- digits_predict", "- reverse_compare"} <= set(done.stdout.splitlines())
    assert done.stderr.endswith("light")


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_is_short(example: str) -> None:
    folder = EXAMPLES[example]
    lines = {path: path.read_text().count("\n") for path in folder.rglob("*") if path.suffix in (".py", ".yml")}
    parts = {example: folder / example, f"{example}/conf": folder / "conf"}
    parts[f"{example}/pipeline.py"] = folder / example / "pipeline.py"
    for name, part in parts.items():
        found = {path: n for path, n in lines.items() if path == part or part in path.parents}
        if name == example:
            found = {path: n for path, n in found.items() if path.name != "pipeline.py"}
        assert 0 < sum(found.values()) <= LONGEST[name], (name, found)


def test_the_check_of_the_document_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES["digits"]))
    blocks = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [found for found in blocks if "\ncheck_task(" in found]
    exec(compile(block, str(DOCUMENT), "exec"), {})


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_document_tells_the_example(example: str) -> None:
    text = DOCUMENT.read_text()
    for name in TOLD:
        path = EXAMPLES[example] / name.format(example)
        assert path.read_text().strip() in text, f"{DOCUMENT.name} must hold {path.name} of {example} as it is"
