"""Bad input as a user meets it: one sentence on stderr, exit code 1, nothing half-written, a failed run in MLflow.

The checks themselves are tested where they are made (tests/tasks/attention, tests/core).
"""

import errno
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pytest
from forked_kedro import KEDRO
from kedro.config import BadConfigException, MissingConfigException
from kedro.io import AbstractDataset, DataCatalog, DatasetError
from kedro.io.core import Version
from kedro.validation.exceptions import ParameterValidationError
from kedro_datasets.json import JSONDataset
from kedro_processes import run
from mlflow.tracking import MlflowClient
from PIL import Image

from grpo_pipeline.datasets.json_lines import read_table
from grpo_pipeline.errors import sentence
from grpo_pipeline.migrate import is_old
from grpo_pipeline.runs.config_loader import ReplacingConfigLoader
from grpo_pipeline.runs.parameters import check_seed

TAIL = "  [GRPO_TRACEBACK=1 shows the traceback]\n"
# Runs `kedro run` with a fault that no input can cause.
FAULTY = """
import errno, sys
from grpo_pipeline.core.storage import checkpoint
from kedro.framework.cli import main

def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")

def after(calls, function, fault):
    def run(*args, **kwargs):
        run.calls += 1
        return (fault if run.calls > calls else function)(*args, **kwargs)
    run.calls = 0
    return run

{fault}
sys.argv = ["kedro", "run", "--env", "smoke", *sys.argv[1:]]
main()
"""
DISK_FULL = "checkpoint.write_tensors = after(1, checkpoint.write_tensors, full)"
NAN_LOSS = """
from grpo_pipeline.pipelines.step import mixing
import dataclasses, torch
original = mixing.mix_losses
def poisoned(algorithm, task, state, supervised_term, **others):
    if state.step >= 3:
        supervised_term = {{name: value * float("nan") for name, value in supervised_term.items()}}
    return original(algorithm, task, state, supervised_term=supervised_term, **others)
mixing.mix_losses = poisoned
"""


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a run that failed as it should."""
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    refused = r"(\d+ of \d+ rows were refused, the first at [^\n]+\n)?"
    said = rf"{refused}(error: [^\n]+\n)(`{re.escape(KEDRO)} run [^\n]*resume=auto` goes on [^\n]+\n)?"
    found = re.fullmatch(said, done.stderr)
    assert found, done.stderr
    first = found[2]
    assert first.endswith(TAIL)
    return first.removeprefix("error: ").removesuffix(TAIL)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory, make_project: Callable[[Path], Path]) -> Path:
    """A project with the generated data, to be spoiled row by row and read as a user's own."""
    project = make_project(tmp_path_factory.mktemp("bad") / "project")
    done = run(project, "--pipelines", "attention_data")
    assert done.returncode == 0, done.stderr
    (project / "conf/smoke/globals.yml").write_text("attention_folder: attention_mine\nattention_root: mine\n")
    (project / "data/01_raw/attention_smoke/phantom").rename(project / "mine")
    return project


OWN = "attention.data.source=manifest"


def spoil_ten_rows(root: Path) -> dict[int, str]:
    """Spoil rows of the manifest and their files; returns line -> what its reason must say."""
    rows = pd.read_csv(root / "manifest.csv", dtype=str, keep_default_na=False)
    rows.loc[1, "core_id"] = rows.loc[0, "core_id"]
    image = root / rows.loc[2, "image"]
    image.write_bytes(image.read_bytes()[:200])
    (root / rows.loc[3, "image"]).write_text("not an image")
    (root / rows.loc[4, "image"]).unlink()
    Image.new("L", (32, 48), 255).save(root / rows.loc[5, "region_mask"])
    rows.loc[6, "image"] = "../secret.png"
    (root / "plane.npy").unlink(missing_ok=True)
    np.save(root / "plane.npy", np.full((64, 64), math.nan, np.float32), allow_pickle=False)
    rows.loc[7, "image"] = "plane.npy"
    Image.new("L", Image.open(root / rows.loc[8, "image"]).size, 0).save(root / rows.loc[8, "region_mask"])
    rows.loc[9, "label"] = "maybe"
    rows.loc[10, "psa"] = ""
    rows.to_csv(root / "manifest.csv", index=False)
    unique = "must be unique, got it in lines [2, 3]"
    return {
        2: unique, 3: unique, 4: "must be a complete image file", 5: "got a file of another kind", 6: "got nothing there",
        7: "must have the size of its image", 8: "must be a path below the data root", 9: "must hold finite numbers, got 4096",
        10: "must mark where points may fall, got an empty mask", 11: "must be one of",
    }  # fmt: skip


@pytest.fixture(scope="module")
def reasons(spoiled: Path) -> dict[int, str]:
    return spoil_ten_rows(spoiled / "mine")


def test_bad_rows_stop_the_run_with_the_first_and_their_number(spoiled: Path, reasons: dict[int, str]) -> None:
    text = error_line(run(spoiled, "--params", OWN))
    assert re.search(r"mine/manifest\.csv line 2 \(\S+\): core id .* must be unique", text)
    assert f"({len(reasons)} of 42 rows are bad: correct them, or set attention.data.on_bad_row: quarantine" in text
    for layer in ("02_intermediate", "03_primary", "04_feature", "05_model_input"):
        assert not list((spoiled / "data" / layer / "attention_mine").glob("*"))


def test_quarantine_lists_every_bad_row_and_divided_patient_and_the_run_goes_on(spoiled: Path, reasons: dict[int, str]) -> None:
    manifest = spoiled / "mine/manifest.csv"
    rows = pd.read_csv(manifest, dtype=str, keep_default_na=False)
    patients = rows["patient_id"].unique()
    rows["split"] = rows["patient_id"].map({patient: ("train", "val", "test")[n % 3] for n, patient in enumerate(patients)})
    torn = rows.index[rows["patient_id"] == patients[-1]]
    rows.loc[torn, "split"] = ["train", "val", "test"]
    rows.to_csv(manifest, index=False)
    said = f"patient '{patients[-1]}' must be in one split, got ['test', 'train', 'val']; move all its rows to one"
    reasons = reasons | dict.fromkeys(torn + 2, said)
    params = f"{OWN},attention.data.columns.split=split,attention.data.on_bad_row=quarantine"
    done = run(spoiled, "--pipelines", "attention_data", "--params", params)
    assert (done.returncode, done.stdout) == (0, "")
    [said] = done.stderr.splitlines()
    assert re.match(r"13 of 42 rows were refused, the first at \S+mine/manifest\.csv line 2 ", said)
    listed = pd.read_csv(spoiled / "data/02_intermediate/attention_mine/quarantine.csv", keep_default_na=False)
    assert listed["row"].tolist() == sorted(reasons)
    assert not [row for row, reason in zip(listed["row"], listed["reason"], strict=True) if reasons[row] not in reason]
    report = json.loads((spoiled / "data/02_intermediate/attention_mine/data_report.json").read_text())
    assert (report["usable"], report["quarantined"]) == (29, 13)
    described = json.loads((spoiled / "data/04_feature/attention_mine/imputation.json").read_text())
    table = read_table(spoiled / "data/05_model_input/attention_mine/examples/table.jsonl")
    assert table["psa"].isna().sum() == report["unknown"]["psa"] >= 1
    in_train = table.loc[table["split"] == "train", "psa"]
    assert (described["psa"]["known"], described["psa"]["unknown"]) == (in_train.notna().sum(), in_train.isna().sum())


def test_a_parameter_with_a_wrong_name(project: Path) -> None:
    """Others: test_startup.py; what the data show is refused later, and leaves every file: test_end_to_end_two_runs.py."""
    text = r"attention\.training\.temperature\.strat must be a parameter of this .*; did you mean .*temperature\.start\?"
    assert re.fullmatch(text, error_line(run(project, "--params", "attention.training.temperature.strat=2")))
    assert not [path for path in (project / "data").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (DISK_FULL, r".*/\w+/checkpoint must be writable, got .*No space left on device; free some space.*"),
        (NAN_LOSS, r"loss term '[\w/]+' of task 'attention' must be finite, got nan at step 3; the weights are unchanged: .*"),
    ],
    ids=["disk full", "NaN"],
)
def test_a_fault_in_training_keeps_the_last_checkpoint(project: Path, fault: str, text: str) -> None:
    done = run(project, code=FAULTY.replace("{fault}", fault.replace("{{", "{").replace("}}", "}")))
    assert re.fullmatch(text, error_line(done))
    assert done.stderr.endswith(f"\n`{KEDRO} run --env smoke --params resume=auto` goes on from the last checkpoint.\n")
    headers = list((project / "data/06_models").rglob("checkpoint.json"))
    assert [json.loads(path.read_text())["progress"]["step"] for path in headers] == [2]
    assert not list((project / "data").rglob("*partial*"))
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("grpo_pipeline_smoke").experiment_id])
    assert {run.info.status for run in runs} == {"FAILED"}
    said = {run.data.tags["error.message"].partition(" must be ")[0] for run in runs}
    assert said == {error_line(done).partition(" must be ")[0]}


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_a_fault_of_the_code_is_no_sentence() -> None:
    for error in (TypeError("x"), KeyError("x"), RuntimeError("x"), AttributeError("x"), raised(ValueError("shapes"))):
        assert sentence(error) is None
    wrapped = DatasetError("Failed while saving data to dataset d(filepath='/d/x.csv').\nx")
    assert sentence(raised(wrapped, TypeError("x"))) is None


def test_an_error_of_the_disk_names_the_file_and_the_remedy() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    wrapped = DatasetError("Failed while saving data to dataset CSVDataset(filepath='/d/x.csv', protocol='file').\n" + str(full))
    said = "/d/x.csv must be writable, got No space left on device; free some space and run the command again: what was there "
    assert sentence(raised(wrapped, raised(full))) == f"{said}before is unchanged"
    rights = "must be readable and writable for this user, got may not; change its rights, or write elsewhere with --params"
    for number in (errno.EROFS, errno.EACCES):
        assert sentence(raised(OSError(number, "may not", "/d/x"))) == f"/d/x {rights} data=<another folder>"


class OnFullDisk(AbstractDataset[Any, Any]):
    """A file on a disk that has no room."""

    def __init__(self, filepath: str) -> None:
        self._filepath = PurePosixPath(filepath)

    def load(self) -> Any:
        return None

    def save(self, data: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._filepath, "protocol": "file"}


def test_a_full_disk_is_said_of_the_file_as_the_catalogue_raises_it() -> None:
    """With the dataset's name, Kedro's sentence about it, and the system's inside."""
    with pytest.raises(DatasetError) as caught:
        DataCatalog({"x": OnFullDisk("/d/x.csv")}).save("x", 1)
    wanted = "/d/x.csv must be writable, got No space left on device; free some space and run the command again: what was there "
    assert sentence(caught.value) == f"{wanted}before is unchanged"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: !!python/object/apply:os.system [ls]\n", "line 2 must be plain YAML, .* constructor for the tag .*os.system"),
        ("a: !secret 3\n", "line 1 must be plain YAML, .* constructor for the tag '!secret'"),
        ("a: 1\na: 2\n", "line 2 must be plain YAML, .* found duplicate key a"),
    ],
)
def test_a_tag_in_yaml_names_its_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    for name in ("base", "local"):
        (tmp_path / name).mkdir()
    (tmp_path / "base" / "parameters.yml").write_text("a: 1\n")
    (tmp_path / "local" / "parameters_own.yml").write_text(text)
    with pytest.raises(BadConfigException, match=f"local/parameters_own.yml {said}"):
        ReplacingConfigLoader(str(tmp_path), base_env="base", default_run_env="local", env="local")["parameters"]


def test_a_version_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    dataset = JSONDataset(filepath=str(tmp_path / "comparison.json"), version=Version(None, None))
    with pytest.raises(DatasetError) as caught:
        dataset.load()
    wanted = f"{tmp_path}/comparison.json must hold a version of its data, got none; run the pipeline that writes it first"
    assert sentence(caught.value) == wanted


def test_a_result_that_was_never_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        JSONDataset(filepath=str(tmp_path / "result.json")).load()
    wanted = f"{tmp_path}/result.json must be there, got no such file; run the pipeline that writes it first, or correct the path"
    assert sentence(caught.value) == wanted


def test_all_refused_parameters_are_named() -> None:
    message = (
        "Parameter validation failed:\n"
        "- Parameter 'a.b': Failed to instantiate B for parameter 'a.b': 2 validation errors for B\n"
        "epochs\n  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, input_type=int]\n"
        "    For further information visit x\nnested.colums\n"
        "  Extra inputs are not permitted [type=extra_forbidden, input_value={'a': 1}, input_type=dict]\n"
        "classes.normal\n  Input should be a valid tuple [type=tuple_type, input_value='normal', input_type=str]\n"
        "spacing_mm\n  Input should be a valid tuple [type=tuple_type, input_value=0.1, input_type=float]\n"
        "clinical\n  Input should be a valid tuple [type=tuple_type, input_value={'a': 1}, input_type=dict]\n"
        "- Parameter 'b': Failed to instantiate B for parameter 'b': 1 validation error for B\n"
        "seeds\n  Tuple should have at least 1 item after validation, not 0 [type=too_short, input_value=[], input_type=list]\n"
        "    For further information visit x\n"
        "- Parameter 'c': value is None but type is not Optional\n- Parameter 'd': something else"
    )
    assert (sentence(ParameterValidationError(message), parameters={"a": {"b": {"nested": {"columns": 1}}}}) or "").split(
        "; "
    ) == [
        "a.b.epochs must be greater than or equal to 1, got 0",
        "correct it",
        "a.b.nested.colums must be a parameter of this project, got an unknown name",
        "did you mean a.b.nested.columns?",
        "a.b.classes.normal must be a list, got 'normal'",
        "write [normal], further values after commas",
        "a.b.spacing_mm must be a list, got 0.1",
        "write [0.1], further values after commas",
        "a.b.clinical must be a list, got {'a': 1}",
        "write [one, another], further values after commas",
        "b.seeds must have at least 1, got []",
        "name what it should hold",
        "c must not be null",
        "leave it out for its default, or say what it is",
        "parameter d: something else",
    ]


def test_names_and_values_of_an_older_version_are_told_what_prints_the_new_form() -> None:
    problems = (
        ("policy_channels\n  Extra inputs are not permitted", "extra_forbidden", "64"),
        (
            "class_decoder\n  Input should be a valid dictionary or object to extract fields from",
            "model_attributes_type",
            "'global'",
        ),
    )
    said = "\n".join(f"{text} [type={kind}, input_value={value}, input_type=str]" for text, kind, value in problems)
    of_model = "Parameter 'attention.model': Failed to instantiate M: 2 validation errors for M"
    message = f"Parameter validation failed:\n- {of_model}\n{said}"
    remedy = "it is of an older version: python -m grpo_pipeline.migrate conf/<yours> prints the new form"
    assert sentence(ParameterValidationError(message)) == (
        f"attention.model.policy_channels must be a parameter of this project, got an unknown name; {remedy}; "
        f"attention.model.class_decoder must be a section with names and values, got 'global'; {remedy}"
    )
    for path in ("attention.grpo.algorithm.kl_weight", "dialogue.model.policy_channels"):
        assert is_old(path) == path.startswith("attention")


@pytest.mark.parametrize(
    ("said", "kind", "value", "wanted"),
    [
        ("a valid integer, unable to parse string as an integer", "int_parsing", "'a'", "a whole number, got 'a'; correct it"),
        ("a valid integer, got a number with a fractional part", "int_from_float", "1.5", "a whole number, got 1.5; correct it"),
        ("a valid number, unable to parse string as a number", "float_parsing", "'x'", "a number, got 'x'; correct it"),
        ("a valid boolean, unable to interpret input", "bool_parsing", "'maybe'", "true or false, got 'maybe'; correct it"),
        ("a valid string", "string_type", "3", "a text, got 3; correct it"),
        ("a dictionary or an instance of Schedule", "dataclass_type", "'high'", "a number, or a schedule such as {kind: linear, "
         "start: 0.1, end: 0.0}, got 'high'; write it so"),
        ("a valid dictionary or instance of Lora", "model_type", "8", "a section with names and values, got 8; write it so"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_told_in_words_what_is_wanted(said: str, kind: str, value: str, wanted: str) -> None:
    problem = f"weight\n  Input should be {said} [type={kind}, input_value={value}, input_type=str]\n    For further x"
    message = f"Parameter validation failed:\n- Parameter 'a.b': Failed to instantiate B: 1 validation error for B\n{problem}"
    assert sentence(ParameterValidationError(message)) == f"a.b.weight must be {wanted}"


@pytest.mark.parametrize("seed", ["abc", 1.5, -1, None, True])
def test_a_seed_that_is_none_is_one_sentence_about_the_seed(seed: Any) -> None:
    with pytest.raises(ValueError, match=f"^seed must be a whole number of at least 0, got {seed!r}; 0 is the default$"):
        check_seed(seed)
    check_seed(0)


def test_an_environment_without_a_folder_is_told_which_there_are(tmp_path: Path) -> None:
    for name in ("base", "local", ".cache"):
        (tmp_path / name).mkdir()
    said = f"Given configuration path either does not exist or is not a valid directory: {tmp_path}/bsae"
    assert sentence(MissingConfigException(said)) == f"--env must name a folder of {tmp_path}, got 'bsae'; there are base, local"


def test_the_traceback_is_there_for_the_asking_and_a_notebook_gets_the_error_itself(project: Path) -> None:
    done = run(project, "--params", "attention.training.group_size=1", GRPO_TRACEBACK="1")
    assert (done.returncode, "Traceback (most recent call last)" in done.stderr) == (1, True)
    from kedro.framework.startup import bootstrap_project

    from grpo_pipeline.session import TrackedSession

    bootstrap_project(project)
    params = {"attention": {"training": {"group_size": 1}}}
    with (
        TrackedSession.create(project_path=project, env="smoke", runtime_params=params) as session,
        pytest.raises(ParameterValidationError),
    ):
        session.run()


def test_a_library_that_the_user_must_install_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_pipeline.tasks.attention.data.formats.volume_checks import library

    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ModuleNotFoundError) as ours:
        library("h5py", "d.h5::a")
    assert sentence(ours.value) == "reading 'd.h5::a' needs h5py; install the extra: pip install '.[formats]'"
