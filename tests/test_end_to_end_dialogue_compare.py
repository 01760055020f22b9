"""`kedro run --pipelines dialogue_compare`: arms x seeds from one warm start per seed, and again with nothing left to train."""

import json
from pathlib import Path

import pandas as pd
import pytest
from kedro_processes import finished_runs, newest
from told_answers import same_everywhere

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KEYS = ["supervised.seed0", "grpo.seed0", "supervised.seed1", "grpo.seed1"]
FOLDER = "dialogue_smoke/compare"
SHORT = "dialogue.warm_start.training.epochs=3"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, make_project) -> Path:
    return make_project(tmp_path_factory.mktemp("compare_talk") / "project")


def trials(project: Path) -> dict[str, dict]:
    folders = (project / "data/07_model_output" / FOLDER / "trials").iterdir()
    return {folder.name: json.loads((folder / "trial.json").read_text()) for folder in folders}


def result(project: Path) -> dict:
    return json.loads(newest(project / "data/08_reporting" / FOLDER / "result.json").read_text())


def test_the_arms_are_compared_and_a_finished_grid_is_not_trained_again(compared: Path, kedro_run) -> None:
    first = kedro_run(compared, "--pipelines", "dialogue_compare", "--params", SHORT, timeout=600)
    assert first.returncode == 0, first.stderr
    assert {key: trial["status"] for key, trial in trials(compared).items()} == dict.fromkeys(sorted(KEYS), "finished")
    document = result(compared)
    assert (document["task"], document["seeds"], list(document["arms"])) == ("dialogue", [0, 1], ["supervised", "grpo"])
    assert document["n"]["cluster"] == "subject_id"
    assert {"reward", "f1", "bleu", "distinct_2"} <= document["differences"]["grpo"].keys()
    same_everywhere(compared / "data/08_reporting" / FOLDER, "compare.html", printed=first.stdout)
    assert f"Page    data/08_reporting/{FOLDER}/compare.html" in first.stdout
    before = trials(compared)
    again = kedro_run(compared, "--pipelines", "dialogue_compare", "--params", SHORT, timeout=600)
    assert again.returncode == 0, again.stderr
    assert trials(compared) == before  # the seconds, too: nothing was trained
    assert result(compared)["arms"] == document["arms"]


def test_arms_of_a_seed_share_their_start_and_have_a_run_each(compared: Path) -> None:
    table = compared / "data/07_model_output" / FOLDER / "trials"
    rows = {key: pd.read_csv(table / key / "predictions.csv", keep_default_na=False) for key in KEYS}
    starts = {key: found[found["rule"] == "start"]["reference_nll"].to_list() for key, found in rows.items()}
    assert starts["supervised.seed1"] == starts["grpo.seed1"] != starts["grpo.seed0"]
    runs = {name: run.data for name, run in finished_runs(compared).items()}
    assert set(KEYS) <= runs.keys()
    assert runs["grpo.seed1"].params["dialogue.warm_start.training.epochs"] == "3"
    assert runs["grpo.seed1"].metrics["test/f1"] == trials(compared)["grpo.seed1"]["metrics"]["f1"]
