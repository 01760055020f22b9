"""Images without labels through the pipeline, through MLflow in a process of its own, and over HTTP: the same numbers."""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pandas as pd
import pytest
from forked_kedro import kedro_command
from kedro_processes import clean_environ
from PIL import Image
from tiny import tiny
from tiny_attention import export
from tiny_predictor import make_weights

from grpo_pipeline.core.storage.weights import save_weights
from grpo_pipeline.tasks.dialogue.prompt_answers import write_reply
from grpo_pipeline.tasks.exported import load_exported

FOLDER = "attention_smoke"
SIZES = {"plain": (40, 56), "sp/ace": (64, 32), "nifti": (20, 30)}
AFFINE = np.array([[0.0, -0.4, 0.0, 3.0], [0.5, 0.0, 0.0, -8.0], [0.0, 0.0, 2.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
# Loads the exported model with nothing but the folder's own code, and answers with the numbers that were asked for.
FRESH = """
import json, sys
import pandas as pd, mlflow.pyfunc
model = mlflow.pyfunc.load_model(sys.argv[1])
answers = model.predict(pd.read_json(sys.argv[2], orient="records"), params={"sets": 3})
import grpo_pipeline
json.dump({"answers": answers.to_dict("records"), "code": grpo_pipeline.__file__}, open(sys.argv[3], "w"))
"""
TRACKING = "import runpy; runpy.run_module('grpo_pipeline.tracking', run_name='__main__')"


def environ(**changes: str) -> dict[str, str]:
    """Return the environment of a shell in which this Python's environment is activated: MLflow starts its server by name."""
    own = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    return clean_environ(**own | changes)


def predict(project: Path, *params: str) -> subprocess.CompletedProcess[str]:
    command = kedro_command("run", "--env", "smoke", "--pipelines", "attention_predict", "--params", ",".join(params))
    return subprocess.run(command, cwd=project, env=environ(), capture_output=True, text=True, timeout=600, check=False)


def write_images(root: Path) -> None:
    """Two PNG files, one with masks, and a NIfTI volume whose second slice is meant."""
    root.mkdir()
    rng = np.random.default_rng(0)
    for number, name in enumerate(("plain", "sp/ace")):
        Image.fromarray(rng.integers(0, 256, SIZES[name], dtype=np.uint8)).save(root / f"{number}.png")
    mask = np.zeros(SIZES["plain"], np.uint8)
    mask[4:36, 8:48] = 255
    Image.fromarray(mask).save(root / "region.png")
    nibabel.Nifti1Image(rng.integers(0, 256, (*SIZES["nifti"], 3), dtype=np.uint8), AFFINE).to_filename(root / "scan.nii.gz")
    rows = [("plain", "p1", "0.png", "region.png", "region.png"), ("sp/ace", "p1", "1.png", "", "")]
    rows += [("nifti", "p2", "scan.nii.gz#axis=0,take=index,index=1", "", "")]
    table = pd.DataFrame(rows, columns=["core_id", "patient_id", "image", "region_mask", "bag_mask"])
    table.to_csv(root / "manifest.csv", index=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, make_project) -> Path:
    """A project with a tiny model that was never trained, and one prediction."""
    path = make_project(tmp_path_factory.mktemp("predict") / "project")
    write_images(path / "mine")
    save_weights(path / "data/06_models" / FOLDER / "grpo/model/2026-01-01T00.00.00.000Z/model", make_weights(knows_inputs=True))
    done = predict(path, "attention.predict.root=mine", "attention.predict.n_samples=3")
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def output(project: Path) -> Path:
    return project / "data/07_model_output" / FOLDER / "predict"


@pytest.fixture(scope="module")
def scores(output: Path) -> pd.DataFrame:
    return pd.read_csv(output / "scores.csv").set_index("core_id")


@pytest.fixture(scope="module")
def exported(project: Path) -> Path:
    """The model as ``python -m grpo_pipeline.tracking export`` writes it, in a project that knows no network."""
    unreachable = environ(PIP_INDEX_URL="http://127.0.0.1:9", HTTPS_PROXY="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9")
    command = kedro_command("export", "--arm", "grpo", "--to", "served", "--env", "smoke", code=TRACKING)
    done = subprocess.run(command, cwd=project, env=unreachable, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return project / "served"


def inline(project: Path) -> list[dict[str, Any]]:
    """The PNG rows of the manifest, with the files inside of them."""
    files = {name: base64.b64encode((project / "mine" / name).read_bytes()).decode() for name in ("0.png", "1.png", "region.png")}
    masks = {"region_mask": files["region.png"], "bag_mask": files["region.png"]}
    return [{"image": files["0.png"], **masks}, {"image": files["1.png"], "region_mask": None, "bag_mask": None}]


def test_every_core_has_a_score_points_and_pictures(output: Path, scores: pd.DataFrame) -> None:
    assert scores.index.tolist() == list(SIZES)
    assert {core: (row.height, row.width) for core, row in scores.iterrows()} == SIZES
    assert scores["prob"].between(0, 1).all()
    assert scores["involvement"].notna().tolist() == [True, False, False]
    assert scores.loc["nifti", ["spacing_row_mm", "spacing_column_mm"]].tolist() == pytest.approx([0.5, 0.4], rel=1e-6)
    points = pd.read_csv(output / "points.csv")
    assert len(points) == 3 * 3 * 3
    sizes = np.array([SIZES[core][::-1] for core in points["core_id"]])
    assert ((points[["x", "y"]].to_numpy() > 0) & (points[["x", "y"]].to_numpy() < sizes)).all()
    patients = pd.read_csv(output / "patients.csv").set_index("patient_id")
    assert patients["prob"].to_dict() == scores.groupby("patient_id")["prob"].max().to_dict()
    for core, name in scores["heatmap"].items():
        for file, mode in ((f"{name}.png", "RGB"), (f"raw/{name}.png", "I;16")):
            with Image.open(output / "heatmaps" / file) as picture:
                assert (picture.size, picture.mode) == (SIZES[core][::-1], mode)
    assert sorted(path.name for path in output.iterdir()) == [
        "frames.csv", "heatmaps", "patients.csv", "points.csv", "quarantine.csv", "report.json", "scores.csv", "sheet.png",
    ]  # fmt: skip


def test_the_volume_has_the_affine_of_its_input_and_the_report_says_what_counted(output: Path) -> None:
    volume = nibabel.load(output / "heatmaps/nifti.nii.gz")
    np.testing.assert_allclose(volume.affine, AFFINE)
    values = volume.get_fdata()
    assert values.shape == (*SIZES["nifti"], 3)
    assert [bool(values[:, :, i].any()) for i in range(3)] == [False, True, False]
    with Image.open(output / "heatmaps/raw/nifti.png") as picture:
        raw = np.asarray(picture) / 65535
    # File axes of this affine: rows of the image along the first, from the back; columns along the second, from the left.
    np.testing.assert_allclose(np.sort(values[:, :, 1].ravel()), np.sort(raw.ravel()), atol=1e-4)
    report = json.loads((output / "report.json").read_text())
    assert (report["arm"], report["model"], report["scored"], report["outside"]) == ("grpo", "2026-01-01T00.00.00.000Z", 3, 3)
    assert report["notes"] == [
        "3 of 3 images are unlike those of the training and have a score not to rely on: outside_why in scores.csv",
        "outside was fitted on 2 validation images of 1 patients: of ordinary images up to 0.500 are expected to be marked",
        "image_size: the model was trained with 32, which counts; attention.data.image_size is 64",
    ]


def test_what_is_outside_has_no_probability_where_the_run_abstains(project: Path) -> None:
    """A sentence refuses a run that cannot be done."""
    models, own = project / "data/06_models/unlike/grpo/model", ("attention_folder=unlike", "attention.predict.root=mine")
    save_weights(models, make_weights(knows_inputs=True))
    done = predict(project, *own, "attention.predict.n_samples=2", "attention.predict.abstain=true")
    assert done.returncode == 0, done.stderr
    assert "3 of 3 images are unlike those of the training and get no score: outside_why in scores.csv" in done.stdout
    folder = project / "data/07_model_output/unlike/predict"
    found = pd.read_csv(folder / "scores.csv")
    assert found["outside"].all()
    assert found[["prob", "prob_calibrated", "prob_std", "involvement"]].isna().all(axis=None)
    assert pd.read_csv(folder / "patients.csv")["outside"].tolist() == [2, 1]
    assert not list((folder / "heatmaps/raw").iterdir())
    assert len(pd.read_csv(folder / "points.csv")) == 3 * 2 * 3
    save_weights(models, make_weights())
    for param, message in {
        "abstain=true": "abstain must be false for a model that does not know what its training images looked like, got true",
        "manifest=none.csv": "set attention_predict_manifest in globals.yml or run with --params attention.predict",
        "arm=nobody": "error: attention.predict.arm must name an arm .* got 'nobody' and it has \\['grpo'\\]",
    }.items():
        done = predict(project, *own, f"attention.predict.{param}")
        assert (done.returncode, done.stdout, bool(re.search(message, done.stderr))) == (1, "", True), done.stderr


def test_one_command_puts_all_results_in_a_folder_and_a_broken_image_aside(
    project: Path, scores: pd.DataFrame, tmp_path: Path
) -> None:
    ours = shutil.copytree(project, tmp_path / "project", symlinks=True)
    (ours / "mine/broken.png").write_text("no image")
    with (ours / "mine/manifest.csv").open("a") as file:
        file.write("broken,p3,broken.png,,\n")
    model = "data/06_models/attention_smoke/grpo"
    given = ("--task", "attention", "--env", "smoke", "--model", model, "mine/manifest.csv", "--to", "scored")
    command = kedro_command("predict", *given, "--option", "sets=3")
    done = subprocess.run(command, cwd=ours, env=environ(), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"The results are in {ours / 'scored'}\n")
    found = pd.read_csv(ours / "scored/scores.csv").set_index("core_id")
    pd.testing.assert_series_equal(found["prob"], scores["prob"])
    assert (ours / "scored/heatmaps/plain.png").is_file()
    assert "broken" in (ours / "scored/quarantine.csv").read_text()


def test_mlflow_answers_with_the_same_numbers_in_a_fresh_process(project: Path, exported: Path, scores: pd.DataFrame) -> None:
    rows = [*inline(project), {"image": "scan.nii.gz#axis=0,take=index,index=1", "region_mask": None, "bag_mask": None}]
    (project / "request.json").write_text(json.dumps(rows))
    command = [sys.executable, "-c", FRESH, str(exported), str(project / "request.json"), str(project / "answers.json")]
    env = environ(GRPO_IMAGE_ROOT=str(project / "mine"))
    env.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=exported, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((project / "answers.json").read_text())
    assert Path(found["code"]).is_relative_to(exported / "code")
    answers = pd.DataFrame(found["answers"])
    for name in ("prob", "prob_calibrated", "involvement"):
        np.testing.assert_allclose(answers[name].astype(float), scores[name], atol=1e-6)
    points = pd.read_csv(project / "data/07_model_output" / FOLDER / "predict/points.csv")
    wanted = points[["x", "y"]].to_numpy().reshape(3, 3, 3, 2)
    np.testing.assert_allclose(answers["points"].tolist(), wanted, atol=1e-6)
    assert answers["outside"].tolist() == scores["outside"].tolist()
    np.testing.assert_allclose(answers["distance"].astype(float), scores["distance"], rtol=1e-4)


def test_the_exported_folder_holds_no_pickle_and_no_guess(exported: Path) -> None:
    # But for the byte code that Python writes where the other tests here have loaded it.
    files = [path for path in exported.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    known = {".json", ".py", ".safetensors", ".txt", ".yaml", ".zip"}
    assert {path.name for path in files if path.suffix not in known} == {"MLmodel"}
    safe = [path for path in files if path.suffix != ".safetensors"]  # those begin with a length, which may be any byte
    assert not [path for path in safe if path.read_bytes()[:1] == b"\x80"]  # the first byte of every pickle since protocol 2
    requirements = (exported / "requirements.txt").read_text().split()
    assert all(re.fullmatch(r"[A-Za-z_]+==[0-9.]+", line) for line in requirements)
    assert "torch==2.13.0" in requirements


@pytest.mark.slow
def test_a_server_answers_with_the_same_numbers(project: Path, exported: Path, scores: pd.DataFrame) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(exported), "--env-manager", "local", "-p", str(port)]
    log = (project / "server.log").open("w")
    server = subprocess.Popen(command, cwd=project, env=environ(), stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until_alive(server, f"http://127.0.0.1:{port}/ping", log=project / "server.log")
        url = f"http://127.0.0.1:{port}/invocations"
        status, body = post(url, {"dataframe_records": inline(project), "params": {"sets": 3}})
        assert status == 200, body
        answers = pd.DataFrame(body["predictions"])
        np.testing.assert_allclose(answers["prob"], scores["prob"].iloc[:2], atol=1e-6)
        np.testing.assert_allclose(answers["prob_calibrated"], scores["prob_calibrated"].iloc[:2], atol=1e-6)
        broken = [{"image": inline(project)[0]["image"][:80]}]
        status, body = post(url, {"dataframe_records": broken})
        assert status == 400
        assert "row 0 of the request: 'request-0-image.png' must be a complete image file" in json.dumps(body)
    finally:
        os.killpg(server.pid, 9)
        server.wait(30)
        log.close()


@pytest.fixture(scope="module")
def writer(project: Path) -> Path:
    """The project with a tiny dialogue model and a tiny molecule model that were never trained."""
    for name in ("dialogue", "molecules"):
        kit = tiny(name)
        task = kit.make_task()
        data = kit.make_data(task) if name == "dialogue" else kit.make_data()
        export(project / f"data/06_models/{name}_smoke/grpo/model/2026-01-01T00.00.00.000Z/model", kit, task, data)
    return project


def run(project: Path, task: str, *params: str) -> subprocess.CompletedProcess[str]:
    command = kedro_command("run", "--env", "smoke", "--pipelines", f"{task}_predict", "--params", ",".join(params))
    return subprocess.run(command, cwd=project, env=environ(), capture_output=True, text=True, timeout=600, check=False)


def test_a_file_of_new_prompts_gets_replies_and_the_command_says_where(writer: Path) -> None:
    prompts = [{"question": "persona: i context: hello", "stories": [{"title": "A", "text": "b"}]}, {"question": "hi"}]
    (writer / "new.jsonl").write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    done = run(writer, "dialogue", "dialogue.predict.prompts=new.jsonl", "dialogue.predict.samples=2")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 rows scored by grpo, model 2026-01-01T00.00.00.000Z" in done.stdout
    assert "Samples data/07_model_output/dialogue_smoke/predict/samples.csv" in done.stdout
    table = pd.read_csv(writer / "data/07_model_output/dialogue_smoke/predict/samples.csv", dtype=str, keep_default_na=False)
    assert table["row"].tolist() == ["0"] * 3 + ["1"] * 3
    assert table["sample"].tolist() == ["likeliest", "0", "1"] * 2
    model = load_exported(writer / "data/06_models/dialogue_smoke/grpo/model/2026-01-01T00.00.00.000Z/model")
    assert table["reply"][3] == write_reply(model, "hi", [])
    (writer / "new.jsonl").write_text('{"question": "hi"}\n{oops\n')
    done = run(writer, "dialogue", "dialogue.predict.prompts=new.jsonl")
    assert (done.returncode, done.stdout) == (1, "")
    assert "line 2 must be JSON" in done.stderr


def test_sizes_and_a_count_get_molecules_and_the_command_says_where(writer: Path) -> None:
    done = run(writer, "molecules", "molecules.predict.count=3", "molecules.predict.sizes=[3]")
    assert done.returncode == 0, done.stderr
    assert "Samples data/07_model_output/molecules_smoke/predict/samples.csv" in done.stdout
    table = pd.read_csv(writer / "data/07_model_output/molecules_smoke/predict/samples.csv", keep_default_na=False)
    assert table.groupby("size").size().to_dict() == dict.fromkeys(table["size"].unique(), 3)
    assert list(table.columns) == ["sample", "size", "smiles", "is_valid", "cause"]


@pytest.mark.parametrize(
    ("task", "request_rows", "wanted"),
    [
        ("dialogue", [{"question": "hi"}], ["reply", "replies"]),
        ("molecules", [{"size": 3, "count": 2}], ["row", "sample", "size", "smiles", "is_valid", "cause"]),
    ],
)
def test_every_task_is_served_from_its_folder_alone(
    writer: Path, tmp_path: Path, task: str, request_rows: list[Any], wanted: list[str]
) -> None:
    to = f"served_{task}"
    command = kedro_command("export", "--task", task, "--arm", "grpo", "--to", to, "--env", "smoke", code=TRACKING)
    done = subprocess.run(command, cwd=writer, env=environ(), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    (writer / "asked.json").write_text(json.dumps(request_rows))
    code = FRESH.replace('{"sets": 3}', '{"seed": 3}')
    command = kedro_command(str(writer / to), str(writer / "asked.json"), str(writer / "told.json"), code=code)
    env = environ()
    env.pop("PYTHONPATH", None)
    # Outside of the project, so that the package is that of the folder.
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads((writer / "told.json").read_text())
    assert Path(told["code"]).is_relative_to(writer / to / "code")
    answers = told["answers"]
    assert [list(row) for row in answers] == [wanted] * len(answers)
    assert len(answers) == sum(row.get("count", 1) for row in request_rows)


def wait_until_alive(server: subprocess.Popen[bytes], url: str, *, log: Path) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text())


def post(url: str, content: dict[str, Any]) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(content).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
