import pytest
from sam_oracle import fixture
from transformers import SamConfig

from grpo_pipeline.tasks.attention.model.checkpoint_files import Shapes, infer_config, rename_original


def shapes(of: str = "tiny") -> dict[str, tuple[int, ...]]:
    original = fixture()["vit_b"] if of == "vit_b" else fixture()["tiny"]["shapes"]
    return {name: tuple(shape) for name, shape in rename_original(original, file="sam.pth").items()}


def test_vit_b_is_recognised():
    ours, theirs = infer_config(shapes("vit_b"), file="sam.pth").to_dict(), SamConfig().to_dict()
    # segment-anything leaves this one at torch's default.
    assert ours["mask_decoder_config"].pop("layer_norm_eps") == 1e-5
    assert theirs["mask_decoder_config"].pop("layer_norm_eps") == 1e-6
    for section in ("vision_config", "prompt_encoder_config", "mask_decoder_config"):
        assert ours[section] == theirs[section]


def test_the_tiny_sam_is_recognised():
    config = infer_config(shapes(), file="sam.pth")
    vision, prompt, decoder = config.vision_config, config.prompt_encoder_config, config.mask_decoder_config
    assert (vision.image_size, vision.patch_size, vision.num_channels, vision.hidden_size) == (64, 8, 3, 16)
    assert (vision.num_hidden_layers, vision.num_attention_heads, vision.mlp_dim) == (3, 2, 24)
    assert (vision.window_size, list(vision.global_attn_indexes), vision.qkv_bias) == (3, [1], True)
    assert (prompt.hidden_size, prompt.mask_input_channels, prompt.num_point_embeddings) == (16, 8, 4)
    assert (decoder.mlp_dim, decoder.num_hidden_layers, decoder.attention_downsample_rate) == (24, 2, 2)
    assert (decoder.num_multimask_outputs, decoder.iou_head_depth, decoder.iou_head_hidden_dim) == (3, 4, 12)


def changed(**lengths: int) -> Shapes:
    """Return the tiny SAM's shapes with other lengths of the relative positions: ``layer0=15``."""
    new = {f"vision_encoder.layers.{layer[-1]}.attn.rel_pos_{axis}": (n, 8) for layer, n in lengths.items() for axis in "hw"}
    return shapes() | new


def test_without_windows_every_layer_is_global():
    vision = infer_config(changed(layer0=15, layer2=15), file="sam.pth").vision_config
    assert (vision.window_size, list(vision.global_attn_indexes)) == (0, [0, 1, 2])


def test_two_window_sizes_are_refused():
    with pytest.raises(ValueError, match=r"one window size beside the 8 x 8 grid, got windows of \[3, 4\] cells; give"):
        infer_config(changed(layer2=7), file="sam.pth")


def test_a_part_of_a_sam_is_refused():
    encoder = {name: shape for name, shape in shapes().items() if name.startswith("vision_encoder")}
    with pytest.raises(ValueError, match=r"sam\.pth must hold .*, got none for 'shared_image.*embedding', .* and 4 more; give"):
        infer_config(encoder, file="sam.pth")
    short = {name: shape for name, shape in shapes().items() if name != "vision_encoder.layers.1.attn.rel_pos_h"}
    with pytest.raises(ValueError, match=r"got none for 'vision_encoder\.layers\.1\.attn\.rel_pos_h'; give"):
        infer_config(short, file="sam.pth")
