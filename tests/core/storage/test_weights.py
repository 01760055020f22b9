from dataclasses import replace

import pytest
import torch
from torch import nn

from grpo_pipeline.core.storage.tensor_folder import CorruptFolderError
from grpo_pipeline.core.storage.weights import load_weights, save_weights, weights_of, without_deleted


def test_round_trip_builds_the_same_module(tmp_path):
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    taken = weights_of(module, {"width": 2})
    expected = module.eval()(torch.ones(1, 3)).detach().clone()
    nn.init.zeros_(module[0].weight)
    save_weights(tmp_path / "m", taken)
    loaded = load_weights(tmp_path / "m")
    other = nn.Sequential(nn.Linear(3, loaded.config["width"]), nn.BatchNorm1d(2)).eval()
    other.load_state_dict(dict(loaded.tensors))
    assert torch.equal(other(torch.ones(1, 3)), expected)
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["model.json", "model.safetensors"]


def test_refuses_missing_and_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match="train first"):
        load_weights(tmp_path / "m")
    save_weights(tmp_path / "m", weights_of(nn.Linear(2, 2), {}))
    (tmp_path / "m" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CorruptFolderError, match=r"model\.safetensors must have check sum"):
        load_weights(tmp_path / "m")


def test_folders_are_written_beside_the_weights(tmp_path):
    def write(folder):
        (folder / "words.txt").write_bytes(b"a\x00\xff")
        (folder / "deep").mkdir()
        (folder / "deep" / "empty.json").touch()

    plain = weights_of(nn.Linear(2, 2), {})
    save_weights(tmp_path / "m", replace(plain, folders={"hub": write}))
    assert (tmp_path / "m/hub/words.txt").read_bytes() == b"a\x00\xff"
    assert load_weights(tmp_path / "m").tensors.keys() == plain.tensors.keys()
    (tmp_path / "m/hub/deep/empty.json").write_bytes(b"b")
    with pytest.raises(CorruptFolderError, match=r"empty\.json must be the file with the check sum"):
        load_weights(tmp_path / "m")
    (tmp_path / "m/hub/deep/empty.json").unlink()
    with pytest.raises(CorruptFolderError, match=r"empty\.json must be the file"):
        load_weights(tmp_path / "m")
    for name in ("../hub", "a/b", "model.json", "model.safetensors"):
        with pytest.raises(ValueError, match=r"must have a plain name other than model.json and model.safetensors, got '.*'"):
            save_weights(tmp_path / "n", replace(plain, folders={name: write}))
    assert not (tmp_path / "n").exists()


def test_a_deleted_field_is_dropped_at_the_value_that_did_without_it():
    described = {"width": 2, "looks": 1, "labels": ["a"], "box": None}
    kept = without_deleted(described, {"looks": 1, "labels": ["b"], "box": None, "other": 3})
    assert kept == {"width": 2, "labels": ["a"]}
