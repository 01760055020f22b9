import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sam_oracle import tiny_weights, write_tiny
from transformers import SamConfig, SamModel

from grpo_pipeline.tasks.attention.model.checkpoint_files import BASIS, TIED_BASIS, digest_of, read_config, read_weights
from grpo_pipeline.tasks.attention.params import CheckpointParams


def checkpoint(path: Path, kind: str = "segment_anything") -> CheckpointParams:
    return CheckpointParams(path=str(path), kind=kind, normalisation="none")


def tiny_config(tmp_path: Path) -> SamConfig:
    return read_config(checkpoint(write_tiny(tmp_path)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small SamModel as transformers writes it."""
    SamModel(tiny_config(tmp_path)).save_pretrained(tmp_path / "hf")
    return tmp_path / "hf"


@pytest.mark.parametrize("content", ["plain", "nested", "parallel"])
def test_training_scripts_may_wrap_the_weights(tmp_path: Path, content: str):
    weights = tiny_weights()
    wrapped = {
        "plain": weights,
        "nested": {"model": weights, "optimizer": {"lr": 0.1}, "epoch": 3},
        "parallel": {f"module.{name}": tensor for name, tensor in weights.items()},
    }[content]
    torch.save(wrapped, tmp_path / "medsam.pth")
    read = read_weights(checkpoint(tmp_path / "medsam.pth"))
    assert torch.equal(read["vision_encoder.pos_embed"], weights["image_encoder.pos_embed"])
    basis = weights["prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"]
    assert torch.equal(read[BASIS], basis)
    assert torch.equal(read[TIED_BASIS], basis)
    assert len(read) == len(weights) + 1


def test_the_format_before_archives_is_read(tmp_path: Path):
    torch.save(tiny_weights(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    read = read_weights(checkpoint(tmp_path / "old.pth"))
    assert torch.equal(read["vision_encoder.pos_embed"], tiny_weights()["image_encoder.pos_embed"])
    assert read_config(checkpoint(tmp_path / "old.pth")).to_dict() == tiny_config(tmp_path).to_dict()


def test_half_precision_is_read_as_single(tmp_path: Path):
    torch.save({name: tensor.half() for name, tensor in tiny_weights().items()}, tmp_path / "half.pth")
    read = read_weights(checkpoint(tmp_path / "half.pth"))
    assert {tensor.dtype for tensor in read.values()} == {torch.float32}
    assert torch.equal(read["vision_encoder.pos_embed"], tiny_weights()["image_encoder.pos_embed"].half().float())


@pytest.mark.parametrize("kept", [BASIS, TIED_BASIS])
def test_a_folder_may_hold_either_name_of_the_basis(folder: Path, kept: str):
    weights = load_file(folder / "model.safetensors")
    basis = weights.pop(BASIS, None) if BASIS in weights else weights.pop(TIED_BASIS)
    weights = {name: tensor for name, tensor in weights.items() if name not in (BASIS, TIED_BASIS)} | {kept: basis}
    save_file(weights, folder / "model.safetensors")
    read = read_weights(checkpoint(folder, "huggingface"))
    assert torch.equal(read[BASIS], basis)
    assert torch.equal(read[TIED_BASIS], basis)


def test_a_folder_says_its_architecture(folder: Path, tmp_path: Path):
    read = read_config(checkpoint(folder, "huggingface"))
    assert read.vision_config.to_dict() == tiny_config(tmp_path).vision_config.to_dict()


class Attack:
    """Pickles as a call that writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("archive", [True, False])
def test_code_in_a_file_is_refused_and_not_run(tmp_path: Path, archive: bool):
    victim = tmp_path / "ran"
    torch.save({"model": Attack(victim)}, tmp_path / "bad.pth", _use_new_zipfile_serialization=archive)
    with pytest.raises(ValueError, match="loads with weights_only=True, got UnpicklingError: .*trust its source"):
        read_weights(checkpoint(tmp_path / "bad.pth"))
    assert not victim.exists()
    torch.load(tmp_path / "bad.pth", weights_only=False)
    assert victim.exists()  # the attack works where nothing is refused


@pytest.mark.parametrize("kept", [100, 20_000, -1])
def test_a_truncated_pth_is_refused(tmp_path: Path, kept: int):
    whole = write_tiny(tmp_path).read_bytes()
    (tmp_path / "cut.pth").write_bytes(whole[:kept])
    for read in (read_config, read_weights):
        with pytest.raises(
            ValueError, match=r"cut\.pth must be a whole .pth file, got \d+ bytes that break off; copy or download"
        ):
            read(checkpoint(tmp_path / "cut.pth"))


@pytest.mark.parametrize("kept", [4, 500, -1])
def test_a_truncated_folder_is_refused(folder: Path, kept: int):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        ValueError, match=r"model\.safetensors must be a whole safetensors file, got .*; copy or download it again"
    ):
        read_weights(checkpoint(folder, "huggingface"))


def test_what_is_missing_is_named(tmp_path: Path, folder: Path):
    with pytest.raises(
        FileNotFoundError, match=r"checkpoint\.path must be a file that exists, got .*none\.pth; correct the path"
    ):
        read_config(checkpoint(tmp_path / "none.pth"))
    with pytest.raises(FileNotFoundError, match=r"checkpoint\.path must be a folder that exists, got .*none; correct the path"):
        read_config(checkpoint(tmp_path / "none", "huggingface"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        FileNotFoundError, match=r"hold config.json and model.safetensors, got \['config.json', 'pytorch_model.bin'\]"
    ):
        read_weights(checkpoint(folder, "huggingface"))


def test_the_wrong_kind_is_named(tmp_path: Path, folder: Path):
    path = write_tiny(tmp_path)
    with pytest.raises(
        ValueError, match=r"folder under the kind 'huggingface', got the file .*kind to segment_anything for a \.pth"
    ):
        read_config(checkpoint(path, "huggingface"))
    with pytest.raises(ValueError, match=r"\.pth file under the kind 'segment_anything', got the folder .*kind to huggingface"):
        read_config(checkpoint(folder))


def test_another_model_is_refused(tmp_path: Path, folder: Path):
    config = json.loads((folder / "config.json").read_text())
    for text, message in (
        (
            json.dumps(config | {"model_type": "sam2"}),
            "must have the model_type 'sam', got 'sam2'; give the folder of a SamModel",
        ),
        ("[1]", r"must have the model_type 'sam', got \[1\]"),
        ("{", "must be a JSON file, got Expecting .*; copy it again"),
    ):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_config(checkpoint(folder, "huggingface"))
    torch.save({"fc.weight": torch.zeros(2)}, tmp_path / "resnet.pth")
    with pytest.raises(ValueError, match=r"names in .*resnet.pth must be those of segment-anything's SAM, got 'fc.weight'; give"):
        read_config(checkpoint(tmp_path / "resnet.pth"))


def test_what_holds_no_tensors_is_refused(tmp_path: Path):
    torch.save({"epoch": 3, "lr": 0.1}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"must hold named tensors.*, got the keys \['epoch', 'lr'\]; save it again"):
        read_weights(checkpoint(tmp_path / "a.pth"))
    torch.save([torch.zeros(2)], tmp_path / "b.pth")
    with pytest.raises(ValueError, match=r"must hold named tensors.*, got list; save it again"):
        read_weights(checkpoint(tmp_path / "b.pth"))
    (tmp_path / "c.pth").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ValueError, match=r"c\.pth must be a \.pth file that loads with weights_only=True, got UnpicklingError"):
        read_weights(checkpoint(tmp_path / "c.pth"))
    (tmp_path / "d.pth").write_bytes(pickle.dumps({"a": 1}, protocol=2))
    with pytest.raises(ValueError, match=r"d\.pth must be a \.pth file"):
        read_weights(checkpoint(tmp_path / "d.pth"))


def test_the_digest_follows_the_content(tmp_path: Path, folder: Path):
    first = write_tiny(tmp_path)
    moved = tmp_path / "elsewhere.pth"
    moved.write_bytes(first.read_bytes())
    assert digest_of(checkpoint(first)) == digest_of(checkpoint(moved))
    torch.save(tiny_weights() | {"image_encoder.neck.1.bias": torch.zeros(16)}, moved)
    before = digest_of(checkpoint(folder, "huggingface"))
    config = json.loads((folder / "config.json").read_text())
    config["mask_decoder_config"]["layer_norm_eps"] = 1e-3
    (folder / "config.json").write_text(json.dumps(config))
    assert (
        len({digest_of(checkpoint(first)), digest_of(checkpoint(moved)), before, digest_of(checkpoint(folder, "huggingface"))})
        == 4
    )
    with pytest.raises(FileNotFoundError, match="must be a file that exists"):
        digest_of(checkpoint(tmp_path / "none.pth"))
