"""Logged models, their scores and data, the registered versions and the champion: what a client of MLflow finds."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas as pd
import pytest
import tiny_attention
import tiny_predictor
from exported_models import export_models
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from tiny import tiny

from grpo_pipeline.core.storage.content_digest import content_digest
from grpo_pipeline.core.storage.weights import load_weights, save_weights
from grpo_pipeline.datasets.trained_arms import TrainedArmsDataset
from grpo_pipeline.tasks.attention.data.preprocessing_params import ModelPreprocessing
from grpo_pipeline.tasks.loaded import load
from grpo_pipeline.tasks.serving import serving_of
from grpo_pipeline.tasks.trained_arms import TrainedArms, model_in, version_of
from grpo_pipeline.tracking.model_address import model_folder
from grpo_pipeline.tracking.registry import CHAMPION, register, set_champion
from grpo_pipeline.tracking.runs import PARENT, Runs
from grpo_pipeline.tracking.served import KeptModel, described, example_row, registered_name, save_served
from grpo_pipeline.tracking.store import use_store

TASKS = ("attention", "dialogue", "molecules")
NAME = "an experiment.attention"


def export(folder: Path, name: str, *, value: float | None = None, step: int = 1, scale: float = 0.05) -> Path:
    """Write a model of a tiny task as a run does, with what it says of its validation."""
    kit = tiny(name)
    task = kit.make_task()
    if name == "attention":
        task = replace(task, preprocessing=ModelPreprocessing.model_validate(tiny_predictor.preprocessing()))
    data = kit.make_data(task) if name == "dialogue" else kit.make_data()
    tiny_attention.export(folder, kit, task, data, tiny_predictor.CALIBRATION, scale=scale)
    weights = load_weights(folder)
    score = {} if value is None else {"validation": {"metric": task.validated_by, "value": value, "step": step}}
    shutil.rmtree(folder)
    save_weights(folder, replace(weights, config={**weights.config, "training": {"step": step}, **score}))
    return folder


def kept(folder: Path, task: str, arm: str, kind: str = "model") -> KeptModel:
    return KeptModel.of(task, arm, kind, path=folder, described=described(folder))


@pytest.fixture
def uri(tmp_path: Path, empty_store: Path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def runs(tmp_path: Path, uri: str) -> Iterator[Runs]:
    """A parent run with a child, in an experiment of its own."""
    lost: list[BaseException] = []
    made = Runs(uri, experiment="an experiment", project=tmp_path, on_lost=lost.append)
    made.open("attention", tags={"env": "here"}, artifacts=str(tmp_path / "files"))
    made.open_child("t.a", tags={"arm": "a"}, resumed=None)
    for run in (PARENT, "t.a"):
        made.log_input(run, "t.examples", digest="d" * 40, source="/data")
    yield made
    assert lost == []


TAGS = {"task": "attention", "arm": "a", "data": "d" * 40}


@pytest.mark.parametrize("name", TASKS)
def test_a_champion_of_each_task_answers_as_the_project_does(
    runs: Runs, uri: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """Loaded by MLflow from the registry, and fetched by a prediction of ours: the same answers, with signature and example."""
    folder = export(tmp_path / "m" / "model", name, value=0.5, scale=0.3)
    one = kept(folder, name, "a")
    runs.open_model("t.a", one, TAGS)
    runs.close_model("t.a", one, TAGS)
    runs.set_champion(name, metric=one.metric, data="d" * 40)
    runs.end({"t.a": "FINISHED", PARENT: "FINISHED"})
    serving: Any = serving_of(name)
    options = {"seed": 3, **({"sets": 2} if name == "attention" else {})}
    asked = pd.DataFrame({"size": [4], "count": [2]}) if name == "molecules" else serving.example()
    expected = serving.answer(serving.load(folder), asked, **dict(serving.options) | options)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    address = f"models:/{registered_name('an experiment', name)}@{CHAMPION}"
    model = mlflow.pyfunc.load_model(address)
    assert model.metadata.signature.inputs.input_names() == [c.name for c in serving.inputs(described(folder))]
    example = model.input_example
    pd.testing.assert_frame_equal(pd.DataFrame(example), serving.example(), check_dtype=False)
    found = model.predict(asked, params=options)
    pd.testing.assert_frame_equal(found, expected)
    use_store(uri)
    arms = TrainedArmsDataset(filepath=str(tmp_path / "nothing")).load()
    fetched = arms.find(address, parameter="p")
    assert version_of(fetched) == f"{registered_name('an experiment', name)}-version-1"
    again = serving.answer(serving.load(fetched), asked, **dict(serving.options) | options)
    pd.testing.assert_frame_equal(again, expected)
    assert arms.find(address, parameter="p") == fetched  # once
    client = MlflowClient(uri)
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()], "tags.arm = 'a'")
    for named in (address, run.info.run_id):
        found_by_name = model_folder(root, name, named, env=None, scratch=tmp_path)
        assert content_digest(found_by_name) == content_digest(fetched)
        shutil.rmtree(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=rf"{'0' * 32} must be the id of a run in .*; grpo ui shows which there are"):
        model_folder(root, name, "0" * 32, env=None, scratch=tmp_path)


def test_the_champion_is_the_best_by_the_validation_and_not_by_the_test_split(runs: Runs, uri: str, tmp_path: Path) -> None:
    """``a`` is better on the test split, ``a-best`` on the validation split."""
    last = kept(export(tmp_path / "last" / "model", "attention", value=0.25, step=9), "attention", "a")
    best = kept(export(tmp_path / "best" / "best", "attention", value=0.75, step=4), "attention", "a", "best")
    for one in (last, best):
        runs.open_model("t.a", one, TAGS)
        runs.log_scores("t.a", {f"validation/{one.metric}": one.value}, model=one.name, step=one.step)
    runs.log_scores("t.a", {"test/auroc": 0.875}, model=last.name)
    runs.log_scores("t.a", {"test/auroc": 0.125}, model=best.name, step=1)
    for one in (last, best):
        runs.close_model("t.a", one, TAGS)
    runs.set_champion("attention", metric="auroc", data="d" * 40)
    runs.end({"t.a": "FINISHED", PARENT: "FINISHED"})
    client = MlflowClient(uri)
    champion = client.get_model_version_by_alias(NAME, CHAMPION)
    assert champion.description == "a after 4 steps, auroc 0.750 on the validation split"
    found = {m.name: m for m in client.search_logged_models([client.get_experiment_by_name("an experiment").experiment_id])}
    assert champion.source == found["attention-a-best"].artifact_location
    assert sorted(found) == ["attention-a", "attention-a-best"]
    assert {str(model.status) for model in found.values()} == {"READY"}
    scores = {name: {(m.key, m.value, m.dataset_name) for m in model.metrics} for name, model in found.items()}
    assert scores == {
        "attention-a": {("validation/auroc", 0.25, "t.examples"), ("test/auroc", 0.875, "t.examples")},
        "attention-a-best": {("validation/auroc", 0.75, "t.examples"), ("test/auroc", 0.125, "t.examples")},
    }
    for run in (runs.parent, runs.children["t.a"]):
        outputs = client.get_run(run).outputs.model_outputs
        assert sorted((one.model_id, one.step) for one in outputs) == sorted(
            [(found["attention-a"].model_id, 9), (found["attention-a-best"].model_id, 4)]
        )


class Registry:
    """Versions by number; notes which of them has the alias."""

    def __init__(self, *versions: tuple[str, float, str]) -> None:
        self.versions = versions
        self.aliases: dict[str, str] = {}

    def search_model_versions(self, query: str, size: int, page_token: str | None) -> Any:
        """Return two versions a page."""
        assert query == f"name = '{NAME}'"
        first = int(page_token or 0)
        tags = [{"validation.metric": m, "validation.value": repr(v), "data": d} if m else {} for m, v, d in self.versions]
        found = [Version(str(first + n + 1), own) for n, own in enumerate(tags[first : first + 2])]
        return Page(found, str(first + 2) if first + 2 < len(tags) else None)

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        self.aliases[f"{name}@{alias}"] = version


class Version:
    def __init__(self, version: str, tags: dict[str, str]) -> None:
        self.version, self.tags = version, tags


class Page(list[Version]):
    def __init__(self, found: list[Version], token: str | None) -> None:
        super().__init__(found)
        self.token = token


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([("auroc", 0.5, "d"), ("auroc", 0.75, "d"), ("auroc", 0.25, "d")], "2"),
        ([("auroc", 0.5, "d"), ("auroc", 0.5, "d")], "1"),  # of equal ones the first keeps it
        ([("auroc", 0.5, "d"), ("auroc", 0.75, "other"), ("reward/mean", 9.0, "d")], "1"),  # other data, another metric
        ([("auroc", -0.5, "d"), ("auroc", -0.25, "d")], "2"),
        ([("", 0.0, "d"), ("auroc", 0.125, "d"), ("auroc", 0.25, "d"), ("auroc", 0.5, "d"), ("auroc", 0.375, "d")], "4"),
        ([("auroc", 0.5, "other")], None),
    ],
)
def test_versions_are_compared_on_the_data_of_the_run_alone(versions: Any, expected: str | None) -> None:
    registry: Any = Registry(*versions)
    set_champion(registry, NAME, metric="auroc", data="d")
    assert registry.aliases == ({} if expected is None else {f"{NAME}@{CHAMPION}": expected})


def test_a_model_that_was_announced_and_has_no_files_has_failed(runs: Runs, uri: str, tmp_path: Path) -> None:
    one = kept(export(tmp_path / "model", "attention", value=0.5), "attention", "a")
    runs.open_model("t.a", one, TAGS)
    runs.end({"t.a": "KILLED", PARENT: "KILLED"}, seconds=60)
    client = MlflowClient(uri)
    [found] = client.search_logged_models([client.get_experiment_by_name("an experiment").experiment_id])
    assert str(found.status) == "FAILED"
    assert list(client.search_registered_models()) == []


def test_a_model_that_cannot_be_packed_leaves_its_weights(runs: Runs, uri: str, tmp_path: Path, monkeypatch: Any) -> None:
    from grpo_pipeline.tracking import runs as module

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr(module, "save_served", refuse)
    one = kept(export(tmp_path / "model", "attention", value=0.5), "attention", "a")
    runs.open_model("t.a", one, TAGS)
    runs.close_model("t.a", one, TAGS)
    runs.set_champion("attention", metric="auroc", data="d" * 40)
    runs.end({"t.a": "FINISHED", PARENT: "FINISHED"})
    client = MlflowClient(uri)
    assert [file.path for file in client.list_artifacts(runs.children["t.a"])] == ["model"]
    assert list(client.search_registered_models()) == []


def test_a_served_model_asks_for_the_columns_of_its_training(tmp_path: Path) -> None:
    folder = model_in(export_models(tmp_path, "dialogue", prompt_column="ask")["dialogue"])
    save_served(folder, tmp_path / "served")
    model = mlflow.pyfunc.load_model(str(tmp_path / "served"))
    assert model.metadata.signature.inputs.input_names() == ["ask", "question", "stories"]
    assert list(pd.DataFrame(model.input_example)) == ["ask"]
    assert example_row(folder) == {"ask": "…"}
    expected = load(folder).predict(["hello"])
    for name in ("ask", "question"):
        pd.testing.assert_frame_equal(model.predict(pd.DataFrame({name: ["hello"]})), expected)
    with pytest.raises(MlflowException, match=r"must have a column 'question', got \['stories'\]"):
        model.predict(pd.DataFrame({"stories": [["a"]]}))


def test_what_is_no_registered_model_is_said_with_its_address(uri: str, tmp_path: Path) -> None:
    use_store(uri)
    arms = TrainedArmsDataset(filepath=str(tmp_path / "nothing")).load()
    with pytest.raises(FileNotFoundError, match=r"models:/none@champion must be a model that a run has registered in sqlite"):
        arms.find("models:/none@champion", parameter="p")
    with pytest.raises(FileNotFoundError, match="p must name an arm"):
        TrainedArms(tmp_path).find("models:/none@champion", parameter="p")  # nobody fetches


def test_a_registry_that_refuses_is_not_taken_for_another_error() -> None:
    class Refusing:
        def create_registered_model(self, name: str, description: str) -> None:
            raise MlflowException("no rights")

    one = KeptModel("attention", "a", "model", Path(), 3)
    refusing: Any = Refusing()
    with pytest.raises(MlflowException, match="no rights"):
        register(refusing, NAME, one, model="m", run="r", tags={})
