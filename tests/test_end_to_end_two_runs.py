"""One run, one result: two at once, a run stamped in the future, foreign files, failures and kills."""

import hashlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forked_kedro import process_of
from kedro_processes import run, start

FOLDER = "attention_smoke"
ARMS = ("supervised", "grpo")
TRAINING = "attention_data,attention_train"
FUTURE = "2099-01-01T00.00.00.000Z"


def record(project: Path) -> dict[str, dict]:
    return json.loads((project / f"data/.runs/{FOLDER}.json").read_text())["entries"]


def tree(project: Path) -> dict[str, str]:
    """Return the digest of every file of the layers from 02 on."""
    files = [path for layer in (project / "data").glob("0[2-8]*") for path in layer.rglob("*") if path.is_file()]
    return {str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def without_progress(files: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if "/checkpoint/" not in name and "metric_rows" not in name}


def test_of_two_at_once_one_has_a_result_and_the_other_a_sentence(tmp_path: Path, make_project) -> None:
    project = make_project(tmp_path / "project")
    both = {seed: start(project, "--pipelines", TRAINING, "--params", f"seed={seed}") for seed in (0, 1)}
    ids = {seed: process_of(process) for seed, process in both.items()}
    said = {seed: process.communicate(timeout=600)[1] for seed, process in both.items()}
    assert sorted(process.returncode for process in both.values()) == [0, 1]
    (winner,), (loser,) = ([seed for seed in both if both[seed].returncode == code] for code in (0, 1))
    (line,) = [text for text in said[loser].splitlines() if text.startswith("error: ")]
    assert f"process {ids[winner]} on " in line
    assert f"kedro run --env smoke --pipelines {TRAINING} --params seed={winner}); wait for it" in line
    assert "or give this run a folder of its own: --params attention_folder=attention_smoke_2" in line
    made = record(project)
    assert len({entry["run"] for entry in made.values()}) == 1
    headers = [
        json.loads(path.read_text()) for path in (project / f"data/06_models/{FOLDER}").glob("*/checkpoint/checkpoint.json")
    ]
    assert [header["progress"]["seed"] for header in headers] == [winner] * 2


def test_every_artefact_names_its_run_and_what_it_was_made_from(smoke_run) -> None:
    project = smoke_run[0]
    made = record(project)
    assert {entry["run"] for entry in made.values()} == {made["attention.report"]["run"]}
    assert all(len(entry["digest"]) == 16 for entry in made.values())
    sources = made["attention.comparison"]["sources"]
    for arm in ARMS:
        assert sources[f"attention.{arm}.model"] == made[f"attention.{arm}.model"]["digest"]
        header = json.loads((project / f"data/06_models/{FOLDER}/{arm}/checkpoint/checkpoint.json").read_text())
        assert header["extra"]["run"] == made["attention.report"]["run"]
    assert {"params:seed", "attention.examples", "attention.splits"} <= sources.keys()
    assert not list((project / "data").rglob("*partial*"))
    assert [path.suffix for path in (project / "data/.runs").iterdir() if path.is_dir()] == []


def test_a_run_stamped_in_the_future_changes_nothing(smoke_copy: Path) -> None:
    """Its versions lie beside the others: an earlier model of other weights, and predictions of nonsense."""
    stamp = record(smoke_copy)["attention.grpo.model"]["version"]
    for path in [*(smoke_copy / "data").glob(f"0*/{FOLDER}/**/{stamp}")]:
        shutil.copytree(path, path.with_name(FUTURE))
    for path in (smoke_copy / "data").glob(f"07*/{FOLDER}/*/predictions.csv/{FUTURE}/predictions.csv"):
        path.write_text("core_id\nnobody\n")
    for parts in ([TRAINING], ["attention_evaluate", "--to-outputs", "attention.comparison"]):
        again = run(smoke_copy, "--pipelines", *parts, "--params", "seed=1,attention.training.epochs=1")
        assert (again.returncode, "did not match" in again.stderr) == (0, False), again.stderr
    made = record(smoke_copy)
    now = made["attention.grpo.model"]["version"]
    assert stamp < now < FUTURE
    assert made["attention.comparison"]["sources"]["attention.grpo.model"] == made["attention.grpo.model"]["digest"]
    tables = [smoke_copy / f"data/07_model_output/{FOLDER}/grpo/predictions.csv/{at}/predictions.csv" for at in (stamp, now)]
    assert tables[0].read_text() != tables[1].read_text()  # another seed, another result
    predicted = run(smoke_copy, "--pipelines", "attention_predict")
    assert predicted.returncode == 0, predicted.stderr
    report = json.loads((smoke_copy / f"data/07_model_output/{FOLDER}/predict/report.json").read_text())
    assert report["model"] == now


def test_what_was_exchanged_edited_or_made_with_another_seed_is_not_used(smoke_copy: Path) -> None:
    """Each is undone before the next: another arm's model, a run that failed after its first arm, a table with another score."""

    def refusal(pipeline: str) -> str:
        refused = run(smoke_copy, "--pipelines", pipeline)
        assert refused.returncode == 1
        (line,) = [text for text in refused.stderr.splitlines() if text.startswith("error: ")]
        return line

    made, models = record(smoke_copy), smoke_copy / f"data/06_models/{FOLDER}"
    own = models / f"grpo/model/{made['attention.grpo.model']['version']}"
    own.rename(smoke_copy / "own")
    shutil.copytree(models / f"supervised/model/{own.name}", own)
    assert f"must be the model that run {made['attention.grpo.model']['run']} saved" in refusal("attention_predict")
    shutil.rmtree(own)
    (smoke_copy / "own").rename(own)

    path = smoke_copy / f"data/.runs/{FOLDER}.json"
    before, noted = path.read_text(), json.loads(path.read_text())
    for name, entry in noted["entries"].items():
        if name.startswith("attention.grpo."):
            entry["run"], entry["sources"]["params:seed"] = "otherother12", "0" * 16
    path.write_text(json.dumps(noted))
    files = tree(smoke_copy)
    line = refusal("attention_evaluate")
    assert tree(smoke_copy) == files
    assert re.search(r"and attention\.grpo\.\w+ must be made from the same params:seed, got attention\.", line), line
    for other in ("otherother12", made["attention.supervised.predictions"]["run"]):
        assert f"by run {other} (since " in line
    path.write_text(before)

    version = made["attention.grpo.predictions"]["version"]
    table = smoke_copy / f"data/07_model_output/{FOLDER}/grpo/predictions.csv/{version}/predictions.csv"
    text = table.read_text()
    table.write_text(re.sub(r"0\.(\d)", r"0.9\1", text, count=1))
    assert table.read_text() != text
    assert "attention.grpo.predictions must be what run " in refusal("attention_evaluate")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory, copy_of_run: Callable[[Path], Path]) -> Path:
    """A project that has run, in which nothing is to change."""
    return copy_of_run(tmp_path_factory.mktemp("untouched") / "project")


@pytest.mark.parametrize(
    ("task", "params", "said"),
    [
        ("attention", "attention.data.image_size=70", "the image size must be a multiple of attention.model.patch_size"),
        ("molecules", "molecules.generator.per_size=1,molecules.generator.max_atoms=3", "split 'val' must hold molecules"),
    ],
)
def test_data_that_cannot_be_trained_on_leave_every_file(untouched: Path, task: str, params: str, said: str) -> None:
    before = tree(untouched)
    failed = run(untouched, "--pipelines", task, "--params", params)
    assert failed.returncode == 1, failed.stderr
    assert said in failed.stderr
    assert tree(untouched) == before


def test_a_killed_run_leaves_the_earlier_result_and_is_gone_on_with(smoke_copy: Path) -> None:
    before = without_progress(tree(smoke_copy))
    longer = "attention.training.epochs=4"
    process = start(smoke_copy, "--params", f"{longer},seed=2")
    trained = process_of(process)
    deadline = time.monotonic() + 300
    header = smoke_copy / f"data/06_models/{FOLDER}/grpo/checkpoint/checkpoint.json"
    while time.monotonic() < deadline and process.poll() is None:
        try:
            progress = json.loads(header.read_text())["progress"]
        except (OSError, ValueError):
            continue
        if progress["seed"] == 2 and progress["step"] >= 2:
            break
        time.sleep(0.02)
    os.kill(trained, signal.SIGKILL)
    process.communicate()
    now = without_progress(tree(smoke_copy))
    assert {name: now.get(name) for name in before} == before
    mixed = run(smoke_copy, "--pipelines", "attention_evaluate")
    assert mixed.returncode == 1
    assert "ended without a word; its folder attention_smoke is taken over" in mixed.stderr
    assert "left unfinished; go on with --params resume=auto" in mixed.stderr
    resumed = run(smoke_copy, "--pipelines", TRAINING, "--params", f"{longer},seed=2,resume=auto")
    assert resumed.returncode == 0, resumed.stderr
    assert run(smoke_copy, "--pipelines", "attention_evaluate", "--to-outputs", "attention.comparison").returncode == 0


def test_a_full_disk_leaves_the_old_page(smoke_copy: Path) -> None:
    """No file may grow beyond a size that lies below that of the page, as on a full disk."""
    before = tree(smoke_copy)
    size = (smoke_copy / f"data/08_reporting/{FOLDER}/report.html").stat().st_size
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size // 2}));"
        "from kedro.framework.cli import main; sys.argv = ['kedro', *sys.argv[1:]]; main()"
    )
    (smoke_copy / "conf/smoke/mlflow.yml").write_text("tracking:\n  disable_tracking:\n    pipelines: [attention_evaluate]\n")
    failed = run(smoke_copy, "run", "--env", "smoke", "--pipelines", "attention_evaluate", code=code)
    assert failed.returncode == 1, failed.stderr
    assert "File too large" in failed.stderr
    now = tree(smoke_copy)
    assert {name: now.get(name) for name in before} == before


def test_a_folder_of_its_own(smoke_copy: Path) -> None:
    before = tree(smoke_copy)
    assert run(smoke_copy, "--pipelines", "attention_data", "--params", "attention_folder=mine").returncode == 0
    assert (smoke_copy / "data/05_model_input/mine/examples/meta.json").is_file()
    now = tree(smoke_copy)
    assert {name: now.get(name) for name in before} == before
    refused = run(smoke_copy, "--pipelines", "attention_data", "--params", "attention_folder=a/b")
    assert refused.returncode == 1
    assert "attention_folder must be the name of one folder, got 'a/b'" in refused.stderr
