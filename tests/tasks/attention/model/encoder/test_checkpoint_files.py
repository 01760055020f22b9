import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sam_oracle import tiny_shapes, tiny_weights, vit_b_shapes, write_tiny  # the original's weights, and a file of them
from transformers import SamConfig, SamModel

from grpo_pipeline.tasks.attention.model.encoder.checkpoint_files import digest_of, read_config, read_weights
from grpo_pipeline.tasks.attention.model.encoder.inferred_config import Shapes, infer_config
from grpo_pipeline.tasks.attention.model.encoder.params import SamEncoder
from grpo_pipeline.tasks.attention.model.encoder.weight_names import BASIS, TIED_BASIS, listed, rename_original


def checkpoint(path: Path, form: str = "segment_anything") -> SamEncoder:
    return SamEncoder(kind="sam", path=str(path), format=form, normalisation="none")


def tiny_config(tmp_path: Path) -> SamConfig:
    return read_config(checkpoint(write_tiny(tmp_path)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small SamModel as transformers writes it."""
    SamModel(tiny_config(tmp_path)).save_pretrained(tmp_path / "hf")
    return tmp_path / "hf"


def test_training_scripts_may_wrap_the_weights_and_older_formats_are_read(tmp_path: Path):
    weights, path, config = tiny_weights(), tmp_path / "medsam.pth", tiny_config(tmp_path)
    basis = weights["prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"]
    wrapped = [
        (weights, True),
        ({"model": weights, "optimizer": {"lr": 0.1}, "epoch": 3}, True),
        ({f"module.{name}": tensor for name, tensor in weights.items()}, True),
        (weights, False),
    ]
    for content, is_zip in wrapped:
        torch.save(content, path, _use_new_zipfile_serialization=is_zip)
        read = read_weights(checkpoint(path))
        assert torch.equal(read["vision_encoder.pos_embed"], weights["image_encoder.pos_embed"])
        assert torch.equal(read[BASIS], basis)
        assert torch.equal(read[TIED_BASIS], basis)
        assert len(read) == len(weights) + 1
        assert read_config(checkpoint(path)).to_dict() == config.to_dict()
    torch.save({name: tensor.half() for name, tensor in weights.items()}, path)
    read = read_weights(checkpoint(path))
    assert {tensor.dtype for tensor in read.values()} == {torch.float32}
    assert torch.equal(read["vision_encoder.pos_embed"], weights["image_encoder.pos_embed"].half().float())


@pytest.mark.parametrize("kept", [BASIS, TIED_BASIS])
def test_a_folder_may_hold_either_name_of_the_basis(folder: Path, kept: str):
    weights = load_file(folder / "model.safetensors")
    basis = weights.pop(BASIS, None) if BASIS in weights else weights.pop(TIED_BASIS)
    weights = {name: tensor for name, tensor in weights.items() if name not in (BASIS, TIED_BASIS)} | {kept: basis}
    save_file(weights, folder / "model.safetensors")
    read = read_weights(checkpoint(folder, "huggingface"))
    assert torch.equal(read[BASIS], basis)
    assert torch.equal(read[TIED_BASIS], basis)
    before = digest_of(checkpoint(folder, "huggingface"))  # the digest follows the configuration too
    changed(folder / "config.json", {"mask_decoder_config": {"layer_norm_eps": 1e-3}})
    assert digest_of(checkpoint(folder, "huggingface")) != before


class Attack:
    """Pickles as a call that writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return Path.touch, (self.path,)


def changed(path: Path, content: Any = None, *, kept: int | None = None) -> Path:
    """Cut a file to its first bytes, or write this: bytes as they are, what is in a configuration as JSON, else a pickle."""
    if path.name == "config.json":
        path.write_text(content if isinstance(content, str) else json.dumps(json.loads(path.read_text()) | content))
    elif kept is not None or isinstance(content, bytes):
        path.write_bytes(path.read_bytes()[:kept] if content is None else content)
    else:
        torch.save(content, path)
    return path.parent if path.parent.name == "hf" else path


@pytest.mark.parametrize("archive", [True, False])
def test_code_in_a_file_is_refused_and_not_run(tmp_path: Path, archive: bool):
    victim = tmp_path / "ran"
    torch.save({"model": Attack(victim)}, tmp_path / "bad.pth", _use_new_zipfile_serialization=archive)
    with pytest.raises(ValueError, match="loads with weights_only=True, got UnpicklingError: .*trust its source") as refused:
        read_weights(checkpoint(tmp_path / "bad.pth"))
    assert "weights_only=False" not in str(refused.value)
    assert "must hold tensors alone" in str(refused.value)
    assert not victim.exists()
    torch.load(tmp_path / "bad.pth", weights_only=False)
    assert victim.exists()  # the attack works where nothing is refused


BROKEN_OFF = r"must be a whole .pth file, got \d+ bytes that break off; copy or download"
IS_WHOLE = r"model\.safetensors must be a whole safetensors file, got .*; copy or download it again"
PTH_THAT_LOADS = r"\.pth must be a \.pth file that loads with weights_only=True, got UnpicklingError"
# What reads which kind; the file or folder, made of a path below a temporary folder and of a sound folder; the error.
REFUSED = [
    *((read, "pth", lambda d, f, n=n: changed(write_tiny(d), kept=n), BROKEN_OFF)
      for read in (read_config, read_weights) for n in (100, -1)),
    *((read_weights, "folder", lambda d, f, n=n: changed(f / "model.safetensors", kept=n), IS_WHOLE) for n in (4, -1)),
    (read_config, "pth", lambda d, f: d / "none.pth", r"must be a file that exists, got .*none\.pth; correct the path"),
    (digest_of, "pth", lambda d, f: d / "none.pth", "must be a file that exists"),
    (read_config, "folder", lambda d, f: d / "none", r"must be a folder that exists, got .*none; correct the path"),
    (read_weights, "folder", lambda d, f: (f / "model.safetensors").rename(f / "pytorch_model.bin").parent,
     r"hold config.json and model.safetensors, got \['config.json', 'pytorch_model.bin'\]"),
    (read_config, "folder", lambda d, f: write_tiny(d),
     r"folder under the format 'huggingface', got the file .*format to segment_anything for a \.pth"),
    (read_config, "pth", lambda d, f: f,
     r"\.pth file under the format 'segment_anything', got the folder .*format to huggingface"),
    (read_config, "folder", lambda d, f: changed(f / "config.json", {"model_type": "sam2"}),
     "must have the model_type 'sam', got 'sam2'; give the folder of a SamModel"),
    (read_config, "folder", lambda d, f: changed(f / "config.json", "[1]"), r"must have the model_type 'sam', got \[1\]"),
    (read_config, "folder", lambda d, f: changed(f / "config.json", "{"), "must be a JSON file, got Expecting .*; copy it again"),
    (read_config, "pth", lambda d, f: changed(d / "resnet.pth", {"fc.weight": torch.zeros(2)}),
     r"names in .*resnet.pth must be those of segment-anything's SAM, got 'fc.weight'; give"),
    (read_weights, "pth", lambda d, f: changed(d / "a.pth", {"epoch": 3, "lr": 0.1}),
     r"must hold named tensors.*, got the keys \['epoch', 'lr'\]; save it again"),
    (read_weights, "pth", lambda d, f: changed(d / "b.pth", [torch.zeros(2)]), r"must hold named tensors.*, got list; save it"),
    (read_weights, "pth", lambda d, f: changed(d / "c.pth", b"version https://git-lfs.github.com/spec/v1"), PTH_THAT_LOADS),
    (read_weights, "pth", lambda d, f: changed(d / "d.pth", pickle.dumps({"a": 1}, protocol=2)), r"d\.pth must be a \.pth file"),
]  # fmt: skip


@pytest.mark.parametrize(("read", "kind", "make", "message"), REFUSED)
def test_what_cannot_be_read_is_refused(tmp_path: Path, folder: Path, read: Any, kind: str, make: Any, message: str):
    path = make(tmp_path, folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read(checkpoint(path, {"pth": "segment_anything", "folder": "huggingface"}[kind]))


def test_vit_b_has_exactly_the_names_and_shapes_of_transformers():
    with torch.device("meta"):
        theirs = SamModel(SamConfig()).state_dict()  # its defaults are those of ViT-B
    expected = {name: tuple(tensor.shape) for name, tensor in theirs.items() if name != TIED_BASIS}
    assert rename_original(vit_b_shapes(), file="sam.pth") == expected
    assert len(expected) == 314
    stem = "mask_decoder.iou_prediction_head"  # the last layer of a head is its output at any depth
    renamed = rename_original({f"{stem}.layers.{i}.weight": i for i in range(4)}, file="sam.pth")
    parts = ("proj_in", "layers.0", "layers.1", "proj_out")
    assert renamed == {f"{stem}.{part}.weight": i for i, part in enumerate(parts)}


def test_names_without_a_rule_are_refused():
    adapted = {"image_encoder.pos_embed": 0} | {f"image_encoder.blocks.{i}.Adapter.D_fc1.weight": 0 for i in range(5)}
    with pytest.raises(ValueError, match=r"got 'image_encoder\.blocks\.0\.Adapter.* and 2 more; give a \.pth of SAM or MedSAM"):
        rename_original(adapted, file="sam.pth")
    with pytest.raises(ValueError, match=r"got 'image_encoder\.neck\.1\.weight\.old'"):
        rename_original({"image_encoder.neck.1.weight.old": 0}, file="sam.pth")
    assert listed(["a"]) == "'a'"
    assert listed(list("abcde")) == "'a', 'b', 'c' and 2 more"


def shapes(of: str = "tiny") -> dict[str, tuple[int, ...]]:
    original = vit_b_shapes() if of == "vit_b" else tiny_shapes()
    return {name: tuple(shape) for name, shape in rename_original(original, file="sam.pth").items()}


def test_vit_b_is_recognised():
    ours, theirs = infer_config(shapes("vit_b"), file="sam.pth").to_dict(), SamConfig().to_dict()
    # segment-anything leaves this one at torch's default.
    assert ours["mask_decoder_config"].pop("layer_norm_eps") == 1e-5
    assert theirs["mask_decoder_config"].pop("layer_norm_eps") == 1e-6
    for section in ("vision_config", "prompt_encoder_config", "mask_decoder_config"):
        assert ours[section] == theirs[section]


def with_lengths(**lengths: int) -> Shapes:
    """Return the tiny SAM's shapes with other lengths of the relative positions: ``layer0=15``."""
    new = {f"vision_encoder.layers.{layer[-1]}.attn.rel_pos_{axis}": (n, 8) for layer, n in lengths.items() for axis in "hw"}
    return shapes() | new


def test_shapes_of_no_sam_are_refused_and_without_windows_every_layer_is_global():
    vision = infer_config(with_lengths(layer0=15, layer2=15), file="sam.pth").vision_config
    assert (vision.window_size, list(vision.global_attn_indexes)) == (0, [0, 1, 2])
    with pytest.raises(ValueError, match=r"one window size beside the 8 x 8 grid, got windows of \[3, 4\] cells; give"):
        infer_config(with_lengths(layer2=7), file="sam.pth")
    encoder = {name: shape for name, shape in shapes().items() if name.startswith("vision_encoder")}
    with pytest.raises(ValueError, match=r"sam\.pth must hold .*, got none for 'shared_image.*embedding', .* and 4 more; give"):
        infer_config(encoder, file="sam.pth")
    short = {name: shape for name, shape in shapes().items() if name != "vision_encoder.layers.1.attn.rel_pos_h"}
    with pytest.raises(ValueError, match=r"got none for 'vision_encoder\.layers\.1\.attn\.rel_pos_h'; give"):
        infer_config(short, file="sam.pth")
