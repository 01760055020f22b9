"""The newest complete model of an arm is found, with and without versions."""

import json
from pathlib import Path

import pytest
import torch

from grpo_pipeline.core.storage.weights import ModelWeights, save_weights
from grpo_pipeline.tasks.exported import TrainedArms, version_of


def save(folder: Path, value: float) -> None:
    save_weights(folder, ModelWeights({"w": torch.tensor([value])}, {"value": value}))


def test_the_newest_complete_version_counts(tmp_path: Path):
    for number, version in enumerate(("2026-01-02T00.00.00.000Z", "2026-01-10T00.00.00.000Z")):
        save(tmp_path / "grpo/model" / version / "model", float(number))
    (tmp_path / "grpo/model/2026-02-01T00.00.00.000Z").mkdir()
    (tmp_path / "other").mkdir()
    arms = TrainedArms(tmp_path)
    assert list(arms.newest()) == ["grpo"]
    assert arms.load("grpo", parameter="x").config == {"value": 1.0}
    assert version_of(arms.find("grpo", parameter="x")) == "2026-01-10T00.00.00.000Z"


def test_a_model_without_versions_is_found(tmp_path: Path):
    save(tmp_path / "grpo/model", 3.0)
    path = TrainedArms(tmp_path).find("grpo", parameter="x")
    assert (path, version_of(path)) == (tmp_path / "grpo/model", "model")
    assert json.loads((path / "model.json").read_text())["config"] == {"value": 3.0}


def test_an_unknown_arm_is_named_with_those_that_are_there(tmp_path: Path):
    save(tmp_path / "grpo/model", 3.0)
    message = r"attention.predict.arm must name an arm .* got 'ppo' and it has \['grpo'\]; choose one of them or train it first"
    with pytest.raises(FileNotFoundError, match=message):
        TrainedArms(tmp_path).load("ppo", parameter="attention.predict.arm")


def test_nothing_trained_says_what_to_run(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"got 'grpo' and there is no model at all; train it first: kedro run"):
        TrainedArms(tmp_path / "none").find("grpo", parameter="attention.predict.arm")
