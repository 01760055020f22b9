"""One run, one result: two at once, a run stamped in the future, foreign files, failures and kills."""

import hashlib
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from kedro_processes import run, start

FOLDER = "attention_smoke"
ARMS = ("supervised", "grpo")
FUTURE = "2099-01-01T00.00.00.000Z"


def record(project: Path) -> dict[str, dict]:
    return json.loads((project / f"data/.runs/{FOLDER}.json").read_text())["entries"]


def tree(project: Path) -> dict[str, str]:
    """Return the digest of every file of the layers from 02 on."""
    files = [path for layer in (project / "data").glob("0[2-8]*") for path in layer.rglob("*") if path.is_file()]
    return {str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def without_progress(files: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if "/checkpoint/" not in name and "metric_rows" not in name}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, make_project) -> Path:
    """A project in which the attention task ran once, seed 0."""
    project = make_project(tmp_path_factory.mktemp("runs") / "project")
    assert run(project).returncode == 0
    return project


@pytest.fixture
def finished(done: Path, tmp_path: Path) -> Path:
    """A copy of that project of a test's own."""
    shutil.copytree(done, tmp_path / "project", symlinks=True)
    return tmp_path / "project"


def test_of_two_at_once_one_has_a_result_and_the_other_a_sentence(tmp_path: Path, make_project) -> None:
    project = make_project(tmp_path / "project")
    both = {seed: start(project, "--params", f"seed={seed}", forked=False) for seed in (0, 1)}
    said = {seed: process.communicate(timeout=600)[1] for seed, process in both.items()}
    assert sorted(process.returncode for process in both.values()) == [0, 1]
    (winner,), (loser,) = ([seed for seed in both if both[seed].returncode == code] for code in (0, 1))
    (line,) = [text for text in said[loser].splitlines() if text.startswith("error: ")]
    assert f"process {both[winner].pid} on " in line
    assert f"kedro run --env smoke --params seed={winner}); wait for it" in line
    assert "or give this run a folder of its own: --params attention_folder=attention_smoke_2" in line
    made = record(project)
    assert len({entry["run"] for entry in made.values()}) == 1
    headers = [
        json.loads(path.read_text()) for path in (project / f"data/06_models/{FOLDER}").glob("*/checkpoint/checkpoint.json")
    ]
    assert [header["progress"]["seed"] for header in headers] == [winner] * 2


def test_every_artefact_names_its_run_and_what_it_was_made_from(done: Path) -> None:
    made = record(done)
    assert {entry["run"] for entry in made.values()} == {made["attention.report"]["run"]}
    assert all(len(entry["digest"]) == 16 for entry in made.values())
    sources = made["attention.comparison"]["sources"]
    for arm in ARMS:
        assert sources[f"attention.{arm}.model"] == made[f"attention.{arm}.model"]["digest"]
        header = json.loads((done / f"data/06_models/{FOLDER}/{arm}/checkpoint/checkpoint.json").read_text())
        assert header["extra"]["run"] == made["attention.report"]["run"]
    assert {"params:seed", "attention.examples", "attention.splits"} <= sources.keys()
    assert not list((done / "data").rglob("*partial*"))
    assert [path.suffix for path in (done / "data/.runs").iterdir() if path.is_dir()] == []


def test_a_run_stamped_in_the_future_changes_nothing(finished: Path) -> None:
    """Its versions lie beside the others: an earlier model of other weights, and predictions of nonsense."""
    stamp = record(finished)["attention.grpo.model"]["version"]
    for path in [*(finished / "data").glob(f"0*/{FOLDER}/**/{stamp}")]:
        shutil.copytree(path, path.with_name(FUTURE))
    for path in (finished / "data").glob(f"07*/{FOLDER}/*/predictions.csv/{FUTURE}/predictions.csv"):
        path.write_text("core_id\nnobody\n")
    again = run(finished, "--params", "seed=1")
    assert (again.returncode, "did not match" in again.stderr) == (0, False)
    made = record(finished)
    now = made["attention.grpo.model"]["version"]
    assert stamp < now < FUTURE
    assert made["attention.comparison"]["sources"]["attention.grpo.model"] == made["attention.grpo.model"]["digest"]
    predicted = run(finished, "--pipelines", "attention_predict")
    assert predicted.returncode == 0, predicted.stderr
    report = json.loads((finished / f"data/07_model_output/{FOLDER}/predict/report.json").read_text())
    assert report["model"] == now
    assert run(finished, "--pipelines", "attention_evaluate").returncode == 0


def test_a_model_that_was_exchanged_is_not_used(finished: Path) -> None:
    version = record(finished)["attention.grpo.model"]["version"]
    models = finished / f"data/06_models/{FOLDER}"
    shutil.rmtree(models / f"grpo/model/{version}")
    shutil.copytree(models / f"supervised/model/{version}", models / f"grpo/model/{version}")
    refused = run(finished, "--pipelines", "attention_predict")
    assert refused.returncode == 1
    assert f"must be the model that run {record(finished)['attention.grpo.model']['run']} saved" in refused.stderr


def test_arms_of_two_seeds_are_not_compared(finished: Path) -> None:
    """A run that failed after its first arm, or files put together by hand."""
    path = finished / f"data/.runs/{FOLDER}.json"
    noted = json.loads(path.read_text())
    for name, entry in noted["entries"].items():
        if name.startswith("attention.grpo."):
            entry["run"], entry["sources"]["params:seed"] = "otherother12", "0" * 16
    path.write_text(json.dumps(noted))
    before = tree(finished)
    refused = run(finished, "--pipelines", "attention_evaluate")
    assert refused.returncode == 1
    (line,) = [text for text in refused.stderr.splitlines() if text.startswith("error: ")]
    assert "must be made from the same params:seed, got attention.grpo" in line
    for made in ("otherother12", noted["entries"]["attention.supervised.predictions"]["run"]):
        assert f"by run {made} (since " in line
    assert tree(finished) == before


def test_an_edited_table_is_not_compared(finished: Path) -> None:
    version = record(finished)["attention.grpo.predictions"]["version"]
    table = finished / f"data/07_model_output/{FOLDER}/grpo/predictions.csv/{version}/predictions.csv"
    before = table.read_text()
    table.write_text(re.sub(r"0\.(\d)", r"0.9\1", before, count=1))
    assert table.read_text() != before
    refused = run(finished, "--pipelines", "attention_evaluate")
    assert refused.returncode == 1
    assert "attention.grpo.predictions must be what run " in refused.stderr


@pytest.mark.parametrize(
    ("task", "params", "said"),
    [
        ("attention", "attention.phantom.patients=2", "the data must hold at least 3 groups"),
        ("attention", "attention.data.image_size=70", "the image size must be a multiple of attention.model.patch_size"),
        ("molecules", "molecules.generator.per_size=1,molecules.generator.max_atoms=3", "split 'val' must hold molecules"),
    ],
)
def test_data_that_cannot_be_trained_on_leave_every_file(done: Path, task: str, params: str, said: str) -> None:
    before = tree(done)
    failed = run(done, "--pipelines", task, "--params", params)
    assert failed.returncode == 1, failed.stderr
    assert said in failed.stderr
    assert tree(done) == before


def test_a_killed_run_leaves_the_earlier_result_and_is_gone_on_with(finished: Path) -> None:
    before = without_progress(tree(finished))
    longer = "attention.training.epochs=6"
    process = start(finished, "--params", f"{longer},seed=2", forked=False)
    deadline = time.monotonic() + 300
    header = finished / f"data/06_models/{FOLDER}/supervised/checkpoint/checkpoint.json"
    while time.monotonic() < deadline and process.poll() is None:
        try:
            progress = json.loads(header.read_text())["progress"]
        except (OSError, ValueError):
            continue
        if progress["seed"] == 2 and progress["step"] >= 2:
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    now = without_progress(tree(finished))
    assert {name: now.get(name) for name in before} == before
    mixed = run(finished, "--pipelines", "attention_evaluate")
    assert mixed.returncode == 1
    assert "ended without a word; its folder attention_smoke is taken over" in mixed.stderr
    assert "left unfinished; go on with --params resume=auto" in mixed.stderr
    resumed = run(finished, "--params", f"{longer},seed=2,resume=auto")
    assert resumed.returncode == 0, resumed.stderr
    assert run(finished, "--pipelines", "attention_evaluate").returncode == 0


def test_a_full_disk_leaves_the_old_page(finished: Path) -> None:
    """No file may grow beyond a size that lies below that of the page, as on a full disk."""
    before = tree(finished)
    size = (finished / f"data/08_reporting/{FOLDER}/report.html").stat().st_size
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size // 2}));"
        "from kedro.framework.cli import main; sys.argv = ['kedro', *sys.argv[1:]]; main()"
    )
    (finished / "conf/smoke/mlflow.yml").write_text("tracking:\n  disable_tracking:\n    pipelines: [attention_evaluate]\n")
    failed = run(finished, "run", "--env", "smoke", "--pipelines", "attention_evaluate", code=code)
    assert failed.returncode == 1, failed.stderr
    assert "File too large" in failed.stderr
    now = tree(finished)
    assert {name: now.get(name) for name in before} == before


def test_a_folder_of_its_own(finished: Path) -> None:
    before = tree(finished)
    assert run(finished, "--pipelines", "attention_data", "--params", "attention_folder=mine").returncode == 0
    assert (finished / "data/05_model_input/mine/examples/meta.json").is_file()
    now = tree(finished)
    assert {name: now.get(name) for name in before} == before
    refused = run(finished, "--pipelines", "attention_data", "--params", "attention_folder=a/b")
    assert refused.returncode == 1
    assert "attention_folder must be the name of one folder, got 'a/b'" in refused.stderr
