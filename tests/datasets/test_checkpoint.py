import json

import pytest
import torch
from kedro.io import DataCatalog
from kedro.io.core import DatasetError, Version
from torch import nn

from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.storage.snapshot import snapshot
from grpo_pipeline.core.storage.weights import ModelWeights, weights_of
from grpo_pipeline.core.training.optim import advance, build_optimizer
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.datasets.checkpoint import CheckpointDataset, ModelDataset


@pytest.fixture
def state():
    net = nn.Linear(2, 1)
    return TrainState(net, build_optimizer({"all": (list(net.parameters()), 0.1)}), None, 0, 0, 0)


def test_one_folder_under_two_catalogue_names(tmp_path, state):
    entry = {"type": "grpo_pipeline.datasets.checkpoint.CheckpointDataset", "filepath": str(tmp_path / "c")}
    catalog = DataCatalog.from_config({"resume_from": entry, "checkpoint": entry})
    assert catalog.load("resume_from") == NoCheckpoint(str(tmp_path / "c"))
    assert not catalog.exists("resume_from")
    catalog.save("checkpoint", False)
    assert not catalog.exists("resume_from")
    catalog.save("checkpoint", snapshot(advance(state), extra={"run_id": "r"}))
    loaded = catalog.load("resume_from")
    assert isinstance(loaded, Checkpoint)
    assert loaded.progress["step"] == 1
    assert loaded.extra == {"run_id": "r"}
    assert torch.equal(loaded.policy["weight"], state.policy.weight)
    catalog.save("checkpoint", False)
    assert catalog.load("resume_from").progress["step"] == 1


def test_damage_is_a_dataset_error_with_the_remedy(tmp_path, state):
    dataset = CheckpointDataset(str(tmp_path / "c"))
    dataset.save(snapshot(state))
    (tmp_path / "c" / "policy.safetensors").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"policy\.safetensors must have check sum .* remove .* and train anew"):
        dataset.load()


def test_refuses_other_data(tmp_path):
    with pytest.raises(DatasetError, match="must be given a Checkpoint or False, got dict"):
        CheckpointDataset(str(tmp_path / "c")).save({})


def test_versioned_weights_keep_every_version(tmp_path):
    net, path = nn.Linear(2, 1), tmp_path / "model"
    assert not ModelDataset(str(path), Version(None, None)).exists()
    assert json.loads(ModelDataset(str(path), Version(None, None)).preview()) == {"config": None}
    for number in (1, 2):
        nn.init.constant_(net.weight, number)
        ModelDataset(str(path), Version(None, f"2025-01-0{number}T00.00.00.000Z")).save(weights_of(net, {"number": number}))
    latest = ModelDataset(str(path), Version(None, None))
    assert latest.load().config == {"number": 2}
    first = ModelDataset(str(path), Version("2025-01-01T00.00.00.000Z", None)).load()
    assert first.tensors["weight"].tolist() == [[1.0, 1.0]]
    assert json.loads(latest.preview()) == {"config": {"number": 2}, "parameters": 3}


def test_weights_without_versions(tmp_path):
    dataset = ModelDataset(str(tmp_path / "model"))
    with pytest.raises(DatasetError, match="train again or choose another version"):
        dataset.load()
    dataset.save(ModelWeights({"w": torch.ones(2)}, {"a": [1, 2]}))
    assert dataset.exists()
    assert dataset.load().config == {"a": [1, 2]}
    (tmp_path / "model" / "model.json").write_text("[]")
    with pytest.raises(DatasetError, match=r"model\.json must hold an object"):
        dataset.load()
