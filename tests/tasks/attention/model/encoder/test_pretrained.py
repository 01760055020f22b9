"""Real checkpoints: the same numbers as the package that wrote them, and the task around them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sam_oracle as oracle
import torch
from pydantic import ValidationError
from tiny_attention import (
    algorithm_params,
    differing,
    make_data,
    make_examples,
    make_state,
    make_task,
    model_params,
    shake,
    training_params,
    weights,
)
from torch import Tensor
from transformers import SamConfig, SamModel

from grpo_pipeline.tasks.attention.augmentation_params import AugmentationParams
from grpo_pipeline.tasks.attention.frozen_features import FeatureSet, encode_examples
from grpo_pipeline.tasks.attention.model import model as model_module
from grpo_pipeline.tasks.attention.model.encoder.checkpoint_files import read_weights
from grpo_pipeline.tasks.attention.model.encoder.encoder_input import encoder_input
from grpo_pipeline.tasks.attention.model.encoder.position_embeddings import fit_positions
from grpo_pipeline.tasks.attention.model.encoder.pretrained import adopt_checkpoint, load_net
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.model.sam import Sam

ENCODER = "vision_encoder"


@pytest.fixture
def pth(tmp_path: Path) -> Path:
    return oracle.write_tiny(tmp_path)


def section(path: Path, form: str = "segment_anything", normalisation: str = "sam") -> dict[str, Any]:
    return {"kind": "sam", "path": str(path), "format": form, "normalisation": normalisation}


def load_sam(path: Path, size: int, form: str = "segment_anything") -> Sam:
    params = adopt_checkpoint(model_params(encoder=section(path, form)), size)
    return Sam(params, size, load_net(params, size)).eval()


@torch.no_grad()
def answer(sam: Sam, size: int, n: int = 2) -> tuple[Tensor, Tensor]:
    features = sam.encode(oracle.make_images(size, n))
    return features, sam.decode(features, oracle.make_points()[:n]).mask_logits


def save_folder(folder: Path, config: SamConfig) -> SamModel:
    """Write a shaken SamModel as transformers does."""
    net = SamModel(config).eval()
    shake(net, scale=0.2)
    net.save_pretrained(folder)
    return net


def test_a_pth_gives_the_numbers_of_segment_anything(pth: Path):
    for size in (64, 32):
        for ours, theirs in zip(answer(load_sam(pth, size), size), oracle.tiny_answers(size), strict=True):
            assert float(theirs.std()) > 0.5  # so that 2e-5 means something
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


@torch.no_grad()
def test_a_folder_gives_the_numbers_of_transformers_and_interpolates_alike(tmp_path: Path, pth: Path):
    net = save_folder(tmp_path / "hf", load_sam(pth, 64).net.config)
    theirs = net(
        pixel_values=oracle.make_images(64),
        input_points=oracle.make_points() * 64 - 0.5,
        input_labels=torch.ones(2, 3, 2, dtype=torch.int64),
        multimask_output=False,
    ).pred_masks[:, :, 0]
    features, masks = answer(load_sam(tmp_path / "hf", 64, "huggingface"), 64)
    assert torch.equal(features, net.vision_encoder(oracle.make_images(64)).last_hidden_state)
    torch.testing.assert_close(masks, theirs, atol=1e-5, rtol=0)
    ours = answer(load_sam(tmp_path / "hf", 32, "huggingface"), 32)[0]
    encoder = net.vision_encoder
    encoder.patch_embed.image_size = (32, 32)  # relative positions are interpolated at each run, absolute ones are not
    smaller = torch.nn.functional.interpolate(encoder.pos_embed.permute(0, 3, 1, 2), size=(4, 4), mode="bicubic")
    encoder.pos_embed = torch.nn.Parameter(smaller.permute(0, 2, 3, 1))
    torch.testing.assert_close(ours, encoder(oracle.make_images(32)).last_hidden_state, atol=1e-5, rtol=0)


def compare_live(tmp_path: Path, encoder: dict[str, Any], size: int, n: int) -> None:
    """Build an original ViT-B in everything but ``encoder``, save it as .pth, and compare both packages on ``n`` images."""
    try:
        sam = oracle.build_original(encoder, mask_channels=16, decoder_mlp=2048, iou=(3, 256))
    except ImportError as error:
        pytest.skip(f"{error}; pip install segment-anything==1.0")
    # Mask logits of order 1: with a gain of 2.4 they reach 20, where round-off alone moves either package by 2e-4.
    sam.load_state_dict(oracle.fill({name: tuple(tensor.shape) for name, tensor in sam.state_dict().items()}, gain=1.6))
    torch.save(sam.state_dict(), tmp_path / "vit_b.pth")
    ours = answer(load_sam(tmp_path / "vit_b.pth", size), size, n)
    if size != encoder["img_size"]:
        sam = oracle.shrink_original(sam, size)
    expected = oracle.answer_original(sam, oracle.make_images(size, n), oracle.make_points()[:n])
    for mine, theirs in zip(ours, expected, strict=True):
        assert float(theirs.std()) > 0.1
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)


VIT_B = {
    "img_size": 1024, "patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_ratio": 4, "out_chans": 256,
    "use_rel_pos": True, "window_size": 14, "global_attn_indexes": (2, 5, 8, 11),
}  # fmt: skip


def test_vit_b_of_two_layers_against_the_package(tmp_path: Path):
    """At another image size than it was trained at, so that its positions are interpolated."""
    compare_live(tmp_path, VIT_B | {"img_size": 256, "depth": 2, "global_attn_indexes": (1,)}, 192, 2)


def test_sizes_come_from_the_file(pth: Path):
    with pytest.raises(
        ValueError, match="image_size must be a multiple of the checkpoint's patch of 8 pixels, got 36; change it"
    ):
        adopt_checkpoint(model_params(encoder=section(pth)), 36)
    assert adopt_checkpoint(model_params(), 36) == model_params()
    with pytest.raises(ValidationError, match=r"encoder\.sam\.layers\n  Extra inputs are not permitted"):
        model_params(encoder=section(pth) | {"layers": 9})
    task = make_task(encoder=section(pth), patch_size=16, mask_decoder={"heads": 2}, points=2)
    expected = {"patch_size": 8, "mask_decoder": {"channels": 16, "layers": 2, "heads": 8}, "points": 2}
    assert task.model.model_dump().items() >= expected.items()
    vision = task.build_policy(0).sam.net.config.vision_config
    assert (vision.hidden_size, vision.num_hidden_layers, vision.num_attention_heads, vision.window_size) == (16, 3, 2, 3)
    assert task.grid == 4


def test_weights_that_do_not_fit_are_listed(tmp_path: Path, pth: Path):
    broken = oracle.tiny_weights()
    for name in ("image_encoder.neck.1.bias", "mask_decoder.iou_token.weight"):
        del broken[name]
    broken["mask_decoder.transformer.norm_final_attn.weight"] = torch.zeros(4)
    broken["image_encoder.blocks.0.attn.rel_pos_w"] = torch.zeros(9, 8)  # a window layer is not interpolated
    torch.save(broken, pth)
    message = (
        r"got missing: 'vision_encoder\.neck\.layer_norm1\.bias', 'mask_decoder\.iou_token\.weight'; of another shape: "
        r"'vision_encoder\.layers\.0\.attn\.rel_pos_w \(9, 8\)', '.*layer_norm_final_attn\.weight \(4,\)'; give the weights"
    )
    with pytest.raises(ValueError, match=message):
        load_sam(pth, 64)


def test_the_policy_sees_what_the_encoder_was_trained_on(pth: Path, monkeypatch: pytest.MonkeyPatch):
    rows, sam = np.array([4, 0, 7]), load_sam(pth, 32)
    grey = torch.as_tensor(make_examples().images[rows])
    for normalisation in ("sam", "medsam", "none"):
        monkeypatch.undo()
        task = make_task(encoder=section(pth, normalisation=normalisation))
        policy, batch = task.build_policy(0), task.make_batch(make_data(), rows)
        assert torch.equal(batch.grey, grey)
        expected = sam.encode(encoder_input(normalisation, batch, channels=3))
        torch.testing.assert_close(task.encode(policy, batch).features, expected, atol=1e-5, rtol=0)
        monkeypatch.setattr(model_module, "CELLS_AT_ONCE", 2 * 16)  # two images at once
        torch.testing.assert_close(task.encode(policy, batch).features, expected, atol=1e-5, rtol=0)
    flipped = replace(task, augmentation=AugmentationParams(horizontal_flip=1.0))
    assert torch.equal(flipped.make_batch(make_data(), rows, generator=torch.Generator().manual_seed(0)).grey, grey.flip(2))
    assert torch.equal(flipped.make_batch(make_data(), rows).grey, grey)
    other = differing(weights(policy), weights(task.build_policy(1)))  # every seed starts from one SAM
    assert {name.split(".")[0] for name in other} == {"texture", "policy", "class_decoder"}


@pytest.mark.parametrize("tuning", [None, {"kind": "frozen"}], ids=["train", "frozen"])
def test_an_update_starts_from_the_file_and_moves_what_is_trainable(pth: Path, tuning: dict[str, str] | None):
    task = make_task(encoder=section(pth, normalisation="medsam") | {"tuning": tuning})
    state = make_state(task, make_data(), algorithm_params(), training_params())
    start = weights(state.policy)
    loaded = fit_positions(read_weights(task.model.checkpoint), grid=4, global_layers=(1,))
    assert differing(loaded, {name.removeprefix("sam.net."): tensor for name, tensor in start.items()}) == []
    batch = task.replicate(task.make_batch(make_data(), np.arange(4)), 2)
    context, generator = task.encode(state.policy, batch), torch.Generator().manual_seed(0)
    rollouts = task.sample(state.policy, context, 2, temperature=1.0, proposal="uniform", generator=generator)
    task.supervised_loss(state.policy, context, batch, task.decode(state.policy, context, rollouts, batch)).backward()
    state.optimizer.step()
    moved = differing(start, weights(state.policy))
    assert any(name.startswith("sam.net.mask_decoder.transformer") for name in moved)
    assert any(ENCODER in name for name in moved) == (tuning is None)
    assert not any("positional_embedding" in name for name in moved)


def test_the_fingerprint_follows_the_content_and_not_the_place(tmp_path: Path, pth: Path):
    def fingerprint(path: Path, normalisation: str = "sam") -> str:
        task = make_task(encoder=section(path, normalisation=normalisation))
        return json.dumps(task.fingerprint(make_data()), sort_keys=True)

    moved = tmp_path / "elsewhere.pth"
    moved.write_bytes(pth.read_bytes())
    first = fingerprint(pth)
    assert first == fingerprint(moved)
    torch.save(oracle.tiny_weights() | {"image_encoder.neck.1.bias": torch.zeros(16)}, moved)
    assert len({first, fingerprint(moved), fingerprint(pth, "medsam")}) == 3
    task = make_task()  # without a checkpoint it is what it was
    found = task.fingerprint(make_data())
    assert found.keys() == {"model", "reward", "supervised_loss", "examples", "split", "heatmap_level"}
    assert found["model"] == task.model.model_dump(mode="json")
    assert not {"path", "format"} & json.loads(first)["model"]["encoder"].keys()
    assert "sam_config" not in task.describe(task.build_policy(0))


def test_a_description_builds_the_model_when_the_file_is_gone(pth: Path):
    task = make_task(encoder=section(pth))
    policy = task.build_policy(0)
    described = json.loads(json.dumps(task.describe(policy)))
    pth.unlink()
    again = AttentionModel.from_description(described)
    again.load_state_dict(weights(policy))
    batch = task.make_batch(make_data(), np.arange(3))
    assert torch.equal(again.encode(batch), policy.encode(batch))
    sets = oracle.make_points()[:1].expand(3, -1, -1, -1)
    features = policy.encode(batch)
    assert torch.equal(again.sam.decode(features, sets).mask_logits, policy.sam.decode(features, sets).mask_logits)
    plain = make_task()
    assert AttentionModel.from_description(plain.describe(plain.build_policy(0))).checkpoint is None


def test_stored_features_follow_the_normalisation(pth: Path):
    examples, empty = make_examples(), FeatureSet(key="", values=None)
    made = {}
    for normalisation in ("sam", "medsam"):
        task = make_task(encoder=section(pth, normalisation=normalisation) | {"tuning": {"kind": "frozen"}})
        made[normalisation] = encode_examples(task, task.build_policy(0), examples, made.get("sam", empty))
    assert made["sam"].key != made["medsam"].key
    batch = task.make_batch(make_data(), np.arange(len(examples.images)))
    expected = load_sam(pth, 32).encode(encoder_input("medsam", batch, channels=3))
    np.testing.assert_allclose(made["medsam"].values, expected.detach().numpy(), atol=1e-5)
