from dataclasses import replace

import pytest
import torch
from torch import nn

from grpo_pipeline.core.tensorfiles import CorruptFolderError
from grpo_pipeline.core.weights import load_weights, save_weights, weights_of


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


def test_files_travel_with_the_weights(tmp_path):
    plain = weights_of(nn.Linear(2, 2), {})
    save_weights(tmp_path / "m", replace(plain, files={"words.txt": b"a\x00\xff", "empty.json": b""}))
    assert load_weights(tmp_path / "m").files == {"words.txt": b"a\x00\xff", "empty.json": b""}
    (tmp_path / "m" / "words.txt").write_bytes(b"b")
    with pytest.raises(CorruptFolderError, match=r"words\.txt must be the file with the check sum"):
        load_weights(tmp_path / "m")
    (tmp_path / "m" / "words.txt").unlink()
    with pytest.raises(CorruptFolderError, match=r"words\.txt must be the file"):
        load_weights(tmp_path / "m")
    for name in ("../words.txt", "a/b", "model.json", "model.safetensors"):
        with pytest.raises(ValueError, match=r"must have a plain name other than model.json and model.safetensors, got '.*'"):
            save_weights(tmp_path / "n", replace(plain, files={name: b""}))
    assert not (tmp_path / "n").exists()
