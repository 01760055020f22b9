import pytest
import torch
from sam_oracle import fixture
from transformers import SamConfig, SamModel

from grpo_pipeline.tasks.attention.model.checkpoint_files import TIED_BASIS, listed, rename_original


def test_vit_b_has_exactly_the_names_and_shapes_of_transformers():
    with torch.device("meta"):
        theirs = SamModel(SamConfig()).state_dict()  # its defaults are those of ViT-B
    expected = {name: list(tensor.shape) for name, tensor in theirs.items() if name != TIED_BASIS}
    assert rename_original(fixture()["vit_b"], file="sam.pth") == expected
    assert len(expected) == 314


def test_the_last_layer_of_a_head_is_its_output_at_any_depth():
    stem = "mask_decoder.iou_prediction_head"
    names = {f"{stem}.layers.{i}.weight": i for i in range(4)}
    renamed = rename_original(names, file="sam.pth")
    parts = ("proj_in", "layers.0", "layers.1", "proj_out")
    assert renamed == {f"{stem}.{part}.weight": i for i, part in enumerate(parts)}


def test_names_without_a_rule_are_refused():
    adapted = {"image_encoder.pos_embed": 0} | {f"image_encoder.blocks.{i}.Adapter.D_fc1.weight": 0 for i in range(5)}
    with pytest.raises(ValueError, match=r"got 'image_encoder\.blocks\.0\.Adapter.* and 2 more; give a \.pth of SAM or MedSAM"):
        rename_original(adapted, file="sam.pth")
    with pytest.raises(ValueError, match=r"got 'image_encoder\.neck\.1\.weight\.old'"):
        rename_original({"image_encoder.neck.1.weight.old": 0}, file="sam.pth")


def test_lists_are_cut():
    assert listed(["a"]) == "'a'"
    assert listed(list("abcde")) == "'a', 'b', 'c' and 2 more"
