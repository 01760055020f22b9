"""One `kedro run` as a user meets it: what it writes, what it tells MLflow, what it prints, and that it can be repeated."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser import looks_right
from kedro_processes import command_of, run
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from grpo_pipeline.statistics.answer import Answer
from grpo_pipeline.tracking.experiment import HIDDEN

ARMS = ("supervised", "grpo")
FOLDER = "attention_smoke"
PLAIN = {".csv", ".html", ".json", ".jsonl", ".lock", ".npy", ".npz", ".png", ".safetensors", ".svg"}
TRAINING_METRICS = {
    "reward/mean", "reward/std", "reward/class/mean", "reward/ties_fraction", "advantage/abs_mean",
    "supervised/loss", "grad_norm/total", "step_seconds", "samples_per_second", "peak_memory_mb",
}  # fmt: skip
GRPO_METRICS = {
    "policy/loss",
    "policy/entropy",
    "policy/ratio_mean",
    "policy/ratio_max",
    "policy/ess",
    "kl/rollout",
    "value/loss",
}


SHOWN = {"reward/mean", "supervised/loss", "val/auroc", "val/reward/mean", "validation/auroc", "test/auroc"}
SHOWN_OF_GRPO = {"policy/entropy", "kl/reference"}


def versions(project: Path, layer: str, name: str) -> list[Path]:
    """All versions of a file, the oldest first."""
    return sorted((project / "data" / layer / FOLDER).glob(f"{name}/*/{Path(name).name}"))


def predictions(project: Path, arm: str, version: int) -> pd.DataFrame:
    return pd.read_csv(versions(project, "07_model_output", f"{arm}/predictions.csv")[version])


def comparison(project: Path, version: int) -> dict:
    return json.loads(versions(project, "08_reporting", "comparison.json")[version].read_text())


@pytest.fixture(scope="module")
def project(smoke_run) -> Path:
    return smoke_run[0]


@pytest.fixture(scope="module")
def client(project: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{project / 'mlflow.db'}")


def runs_of(client: MlflowClient) -> list[Run]:
    experiment = client.get_experiment_by_name("grpo_pipeline_smoke")
    return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])


@pytest.fixture(scope="module")
def runs(client: MlflowClient) -> dict[str, Run]:
    """The runs of the first command by name."""
    first = runs_of(client)[:3]
    return {command_of(entry): entry for entry in first}


def test_the_page_is_read_in_five_seconds_in_a_browser(project: Path, tmp_path: Path) -> None:
    (page,) = project.glob("data/08_reporting/*/report.html")
    looks_right(page, tmp_path)


def test_every_layer_holds_its_artefacts_none_of_them_pickled_or_half_written(project: Path) -> None:
    versioned = {
        "07_model_output": [f"{arm}/{name}" for arm in ARMS for name in ("probe_table.csv", "predictions.csv", "rollouts.csv")],
        "08_reporting": ["comparison.json", "learning_curves", "roc.svg", "image_sheet.png"],
    }
    assert {name: len(versions(project, layer, name)) for layer, names in versioned.items() for name in names} == {
        name: 1 for names in versioned.values() for name in names
    }
    plain = [
        "01_raw/*/phantom/manifest.csv", "02_intermediate/*/checked.csv", "02_intermediate/*/quarantine.csv",
        "02_intermediate/*/data_report.json", "03_primary/*/splits.json", "05_model_input/*/features.safetensors",
        "05_model_input/*/examples/images.npy", "04_feature/*/imputation.json", "06_models/*/grpo/checkpoint/checkpoint.json",
        "06_models/*/grpo/model/*/model/model.safetensors", "07_model_output/*/grpo/metric_rows.jsonl",
        "08_reporting/*/report.html", "08_reporting/*/reward_audit/result.json", "08_reporting/*/reward_audit/table.csv",
        "08_reporting/*/reward_audit/rewards.png", "07_model_output/*/reward_audit/samples.csv",
    ]  # fmt: skip
    assert {pattern: len(list((project / "data").glob(pattern))) for pattern in plain} == dict.fromkeys(plain, 1)
    files = [path for path in (project / "data").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= PLAIN
    assert not [path for path in (project / "data").rglob("*") if "partial" in path.name or path.suffix == ".tmp"]
    for path in files:
        if path.suffix in (".npy", ".npz"):
            np.load(path, allow_pickle=False)


def test_a_comparison_follows_the_schema_and_rules_predict_each_test_core_once(project: Path) -> None:
    document = comparison(project, 0)
    assert {name: document[name] for name in ("task", "control", "split", "seed", "baseline_arm")} == {
        "task": "attention", "control": "supervised", "split": "test", "seed": 0, "baseline_arm": "grpo",
    }  # fmt: skip
    splits = json.loads((project / "data/03_primary" / FOLDER / "splits.json").read_text())
    assert document["n"].items() >= {"examples": len(splits["test"]), "clusters": 4, "cluster": "patient_id"}.items()
    assert set(document["arms"]) == set(ARMS)
    assert set(document["differences"]) == {"grpo"}
    rules = {"greedy", "start", "uniform", "centre", "fixed", "constant", "blobs", "none", "oracle", "shuffled", "pooled"}
    assert set(document["baselines"]) == set(document["own_minus_baseline"]) == rules
    sections = [*document["arms"].values(), *document["baselines"].values()]
    entries = [*(e for s in sections for e in s["metrics"].values()), *document["differences"]["grpo"].values()]
    assert not [entry for entry in entries if entry["value"] is None and not entry["reason"]]
    assert not [entry for entry in entries if entry["ci95"] is not None and not entry["ci95"][0] <= entry["ci95"][1]]
    assert document["differences"]["grpo"]["brier"]["value"] == pytest.approx(
        document["arms"]["grpo"]["metrics"]["brier"]["value"] - document["arms"]["supervised"]["metrics"]["brier"]["value"]
    )
    assert document["summary"]
    for arm in ARMS:
        rows = predictions(project, arm, 0)
        cores = {rule: sorted(part["core_id"]) for rule, part in rows.groupby("rule")}
        assert cores == dict.fromkeys(rows["rule"].unique(), sorted(splits["test"]))
        assert rows["prob"].between(0, 1).all()


def test_the_page_loads_nothing_from_elsewhere(project: Path) -> None:
    page = (project / "data/08_reporting" / FOLDER / "report.html").read_text(encoding="utf-8")
    markup = re.sub(r"<script\b[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(
        r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=[\"'](?!data:)[^\"']*", page.replace(markup, "") + markup
    )
    assert "data:image/png;base64," in page
    assert "undefined: undefined" not in markup


def test_a_parent_and_a_child_for_each_arm_have_finished_with_the_same_metrics(project: Path, runs: dict[str, Run]) -> None:
    names = ("attention", "attention.grpo", "attention.supervised")
    assert {name: run.info.status for name, run in runs.items()} == dict.fromkeys(names, "FINISHED")
    assert {runs[name].data.tags.get("mlflow.parentRunId") for name in names[1:]} == {runs[names[0]].info.run_id}
    for arm in ARMS:
        metrics = runs[f"attention.{arm}"].data.metrics
        assert SHOWN | (SHOWN_OF_GRPO if arm == "grpo" else set()) <= metrics.keys()
        logged = {name.removeprefix("test/"): value for name, value in metrics.items() if name.startswith("test/")}
        document = comparison(project, 0)
        scores = document["arms"][arm]["metrics"]
        assert logged == {name: scores[name]["value"] for name in document["headline"]}
        # All that is measured is in the file of the rows.
        rows = (project / f"data/07_model_output/{FOLDER}/{arm}/metric_rows.jsonl").read_text().splitlines()
        measured = {name for row in rows for name in json.loads(row)}
        assert sorted((TRAINING_METRICS | (GRPO_METRICS if arm == "grpo" else set())) - measured) == []
    assert {name: len(runs[name].data.metrics) <= 20 for name in names} == dict.fromkeys(names, True)
    gaps = {f"difference/{name}": document["differences"]["grpo"][name]["value"] for name in document["headline"]}
    shown = {f"test/{name}": document["arms"]["grpo"]["metrics"][name]["value"] for name in document["headline"]}
    logged = {name: value for name, value in runs["attention"].data.metrics.items() if not name.startswith("system/")}
    assert logged == {name: value for name, value in (gaps | shown).items() if value is not None}


def test_each_kept_checkpoint_is_a_model_and_the_champion_is_the_best_validated_one(
    project: Path, client: MlflowClient, runs: dict[str, Run]
) -> None:
    """As the files on disk say it; where the best weights are the last ones there is one model."""
    expected = {}
    for arm in ARMS:
        folder = project / "data/06_models" / FOLDER / arm
        headers = [next(folder.glob(f"{kind}/*/{kind}/model.json")) for kind in ("model", "best")]
        last, best = (json.loads(header.read_text())["config"] for header in headers)
        expected[f"attention-{arm}"] = (last["training"]["step"], last["validation"]["value"])
        if best["training"]["step"] != last["training"]["step"]:
            expected[f"attention-{arm}-best"] = (best["training"]["step"], best["validation"]["value"])
    experiment = client.get_experiment_by_name("grpo_pipeline_smoke").experiment_id
    models = {model.model_id: model for model in client.search_logged_models([experiment])}
    found = {
        models[one.model_id].name: (one.step, {m.key: m.value for m in models[one.model_id].metrics}["validation/auroc"])
        for one in runs["attention"].outputs.model_outputs
    }
    assert found == expected
    name = "grpo_pipeline_smoke.attention"
    champion = client.get_model_version_by_alias(name, "champion")
    values = {one.version: float(one.tags["validation.value"]) for one in client.search_model_versions(f"name = '{name}'")}
    assert values[champion.version] == max(values.values())
    answer = Answer.model_validate_json(versions(project, "08_reporting", "answer.json")[0].read_text(encoding="utf-8"))
    assert answer.model is not None
    assert (champion.tags["arm"], float(champion.tags["validation.value"])) == (answer.model.arm, answer.model.value)


def test_mlflow_holds_files_and_tables(client: MlflowClient, runs: dict[str, Run]) -> None:
    def files(name: str, folder: str | None = None) -> set[str]:
        return {item.path for item in client.list_artifacts(runs[name].info.run_id, folder)}

    parent = {"comparison.json", "learning_curves", "roc.svg", "image_sheet.png", "report.html", "data_report.json"}
    assert sorted(parent - files("attention")) == []
    assert files("attention", "config") == {"config/catalog.yml", "config/parameters.yml", "config/run.yml"}
    assert files("attention", "tables") == {"tables/comparison.json"}
    for arm in ARMS:
        child = {"probe_table.csv", "predictions.csv", "rollouts.csv", "calibration.json", "metric_rows.jsonl"}
        assert sorted(child - files(f"attention.{arm}")) == []
        assert files(f"attention.{arm}", "tables") == {
            "tables/probe_table.json",
            "tables/rollouts.json",
            "tables/samples.json",
        }


def test_a_run_names_code_command_and_data_and_every_page_and_record_names_the_run(project: Path, runs: dict[str, Run]) -> None:
    parent = runs["attention"]
    answer = Answer.model_validate_json(versions(project, "08_reporting", "answer.json")[0].read_text(encoding="utf-8"))
    assert parent.info.run_name == f"attention {answer.short} · seed 0"
    assert (parent.data.tags["mlflow.note.content"], parent.data.tags["verdict"]) == (answer.markdown, answer.verdict)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True, check=True).stdout.strip()
    tags = parent.data.tags
    assert tags["mlflow.source.name"] == "kedro run --env smoke"
    assert (tags["mlflow.source.git.commit"], tags[f"{HIDDEN}git.dirty"], tags["env"]) == (head, "false", "smoke")
    assert comparison(project, 0)["commit"] == head

    digest = json.loads((project / "data/05_model_input" / FOLDER / "examples" / "meta.json").read_text())["digest"]
    inputs = {name: [item.dataset for item in run.inputs.dataset_inputs] for name, run in runs.items()}
    digests = {name: [(dataset.name, dataset.digest) for dataset in found] for name, found in inputs.items()}
    assert [name for name, _ in digests["attention"]] == ["attention.examples"]
    assert digests == dict.fromkeys(runs, digests["attention"])  # each arm's run says, too, what it was trained on
    assert tags[f"{HIDDEN}data.attention.examples.digest"] == digest
    assert parent.data.params["attention.training.epochs"] == "2"
    assert "attention.training.encoder_refresh" not in parent.data.params  # as in conf/base
    record = json.loads((project / f"data/.runs/{FOLDER}.json").read_text())
    made = {entry["run"] for entry in record["entries"].values()}
    newest = comparison(project, 0)["run"]
    assert newest in made
    page = (project / f"data/08_reporting/{FOLDER}/report.html").read_text(encoding="utf-8")
    assert f"<dd>{newest}</dd>" in page
    for name in ("attention", *(f"attention.{arm}" for arm in ARMS)):
        assert runs[name].data.tags[f"{HIDDEN}run.identity"] in made


def test_little_is_printed(smoke_run) -> None:
    done = smoke_run[1]
    assert done.stderr == ""
    assert not re.findall(r"WARNING|INFO|Warning|Traceback", done.stdout)
    lines = done.stdout.splitlines()
    answer = lines[next(number for number, line in enumerate(lines) if line.startswith("Attention: ")) :]
    assert len([line for line in answer if line]) <= 20
    assert max(map(len, lines)) <= 130
    assert any(line.startswith("attention.reward_audit, val split, 6 examples") for line in lines)
    assert any(line.startswith(f"Page    data/08_reporting/{FOLDER}/report.html  (every figure") for line in lines)
    assert any(line.startswith("MLflow  grpo ui (experiment grpo_pipeline_smoke") for line in lines)


def test_the_parts_give_what_the_whole_gives(smoke_copy: Path) -> None:
    """From a folder inside of the project."""
    for part in ("attention_data", "attention_train", "attention_evaluate"):
        done = run(smoke_copy, "--pipelines", part, folder="data")
        assert (done.returncode, done.stderr) == (0, "")
    for arm in ARMS:
        pd.testing.assert_frame_equal(predictions(smoke_copy, arm, 0), predictions(smoke_copy, arm, 1), check_exact=True)
    assert len(versions(smoke_copy, "08_reporting", "comparison.json")) == 2
    first, second = comparison(smoke_copy, 0), comparison(smoke_copy, 1)
    assert first.pop("run") != second.pop("run")
    del first["commit"], second["commit"]  # the copy has its package from elsewhere
    assert first == second
    assert not list((smoke_copy / "data").glob("ml*"))


@pytest.mark.slow
def test_a_pretraining_is_a_stage_that_is_trained_once_and_arms_begin_with_it(smoke_copy: Path) -> None:
    """It has a child run of its own; a run that goes on trains it no more, and other outlines are trained anew."""
    rates = "attention.training.optimizer.learning_rates.detail=0.01"
    shown = f"{rates},attention.model.detail.channels=8,attention.supervised_loss.mask_share"
    once = f"attention.arms=grpo,attention.training.epochs=1,attention.pretraining.training.epochs=1,{shown}=1.0"
    stage = smoke_copy / f"data/07_model_output/{FOLDER}/pretraining/metric_rows.jsonl"
    header = smoke_copy / f"data/06_models/{FOLDER}/grpo/checkpoint/checkpoint.json"
    written, starts = [], []
    for params in (once, f"{once},resume=auto", f"{once},{shown.rpartition(',')[2]}=0.5"):
        done = run(smoke_copy, "--pipelines", "attention_train", "--params", params)
        assert done.returncode == 0, done.stderr
        written.append(stage.read_text())
        starts.append(json.loads(header.read_text())["parameters"]["task"]["start"]["weights"])
    rows = [json.loads(line) for line in written[0].splitlines()]
    assert {row["split"] for row in rows if "supervised/loss" in row} == {"train"}
    assert written[0] == written[1] != written[2]
    assert starts[0] == starts[1] != starts[2]
    named = [entry.info.run_name for entry in runs_of(MlflowClient(f"sqlite:///{smoke_copy / 'mlflow.db'}"))]
    assert named.count("attention.pretraining") == 2  # the second command went on with the run of the first
    refused = run(smoke_copy, "--params", "attention.pretraining.masking.share=0.3")
    assert (
        "attention.pretraining must hold sections of attention, got 'masking'; it may have algorithm, training" in refused.stderr
    )
