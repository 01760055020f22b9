"""The original segment-anything as an oracle: a tiny SAM with weights by formula, and what it answers."""

import importlib
import importlib.util
import math
import sys
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

SIZE, PATCH = 64, 8
TINY_ENCODER = {
    "img_size": SIZE, "patch_size": PATCH, "embed_dim": 16, "depth": 3, "num_heads": 2, "mlp_ratio": 1.5, "out_chans": 16,
    "use_rel_pos": True, "window_size": 3, "global_attn_indexes": (1,),
}  # fmt: skip


def import_original() -> ModuleType:
    """Import ``segment_anything.build_sam`` without the package's own imports, which need torchvision for other things.

    Raises:
        ImportError: if segment-anything is not installed.
    """
    spec = importlib.util.find_spec("segment_anything")
    if spec is None:
        raise ImportError("segment-anything is not installed")
    if "segment_anything" not in sys.modules:
        sys.modules["segment_anything"] = importlib.util.module_from_spec(spec)  # made, not run
    return importlib.import_module("segment_anything.build_sam")


def wave(index: int, shape: tuple[int, ...]) -> Tensor:
    """Return numbers in [-1, 1] without visible structure: sin(0.37 k^2 + index) for entry k, float32."""
    k = np.arange(math.prod(shape), dtype=np.float64)
    return torch.from_numpy(np.sin(0.37 * k * k + index).astype(np.float32)).reshape(shape)


def fill(shapes: Mapping[str, tuple[int, ...]], *, gain: float = 2.4) -> dict[str, Tensor]:
    """Return weights for these names: every entry matters and no activation explodes.

    ``gain`` scales the matrices; 2.4 gives the tiny SAM mask logits of order 1.
    """
    return {name: _fill(name, index, tuple(shape), gain) for index, (name, shape) in enumerate(shapes.items())}


def _fill(name: str, index: int, shape: tuple[int, ...], gain: float) -> Tensor:
    values = wave(index, shape)
    if len(shape) == 1:
        return 0.3 * values + (1.0 if name.endswith("weight") else 0.0)
    if any(word in name for word in ("rel_pos", "pos_embed", "point_embed", "mask_embed", "iou_token", "mask_tokens")):
        return 0.7 * values
    return values * gain / math.sqrt(math.prod(shape[1:]))


def build_original(
    encoder: Mapping[str, Any], *, mask_channels: int = 8, decoder_mlp: int = 24, iou: tuple[int, int] = (4, 12)
) -> Any:
    """Build a SAM from the original classes; ``iou`` is depth and width of the head that is never used here."""
    original = import_original()
    width, size, patch = encoder["out_chans"], encoder["img_size"], encoder["patch_size"]
    norm = partial(torch.nn.LayerNorm, eps=1e-6)
    return original.Sam(
        image_encoder=original.ImageEncoderViT(**encoder, norm_layer=norm),
        prompt_encoder=original.PromptEncoder(
            embed_dim=width,
            image_embedding_size=(size // patch, size // patch),
            input_image_size=(size, size),
            mask_in_chans=mask_channels,
        ),
        mask_decoder=original.MaskDecoder(
            transformer=original.TwoWayTransformer(depth=2, embedding_dim=width, mlp_dim=decoder_mlp, num_heads=8),
            transformer_dim=width,
            iou_head_depth=iou[0],
            iou_head_hidden_dim=iou[1],
        ),
    ).eval()


@torch.no_grad()
def answer_original(sam: Any, images: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the image embeddings and the single-mask logits [P, G, 4h, 4w] of the original package.

    Args:
        sam: an original SAM.
        images: [P, 3, S, S], as its encoder reads them.
        points: [P, G, k, 2], (x, y) in [0, 1]; the package wants pixels, whose centres lie at whole numbers.
    """
    features = sam.image_encoder(images)
    masks = []
    for image, n_samples in zip(features, points * images.shape[-1] - 0.5, strict=True):
        sparse, dense = sam.prompt_encoder(points=(n_samples, torch.ones(n_samples.shape[:2])), boxes=None, masks=None)
        logits, _ = sam.mask_decoder(image[None], sam.prompt_encoder.get_dense_pe(), sparse, dense, multimask_output=False)
        masks.append(logits[:, 0])
    return features, torch.stack(masks)


def shrink_original(sam: Any, size: int) -> Any:
    """Let an original SAM read smaller images: absolute positions bicubic; relative ones it interpolates by itself."""
    grid = size // sam.image_encoder.patch_embed.proj.kernel_size[0]
    positions = sam.image_encoder.pos_embed.detach().permute(0, 3, 1, 2)
    smaller = torch.nn.functional.interpolate(positions, size=(grid, grid), mode="bicubic").permute(0, 2, 3, 1)
    sam.image_encoder.pos_embed = torch.nn.Parameter(smaller)
    sam.prompt_encoder.image_embedding_size, sam.prompt_encoder.input_image_size = (grid, grid), (size, size)
    return sam


def make_images(size: int, n: int = 2) -> Tensor:
    """Return images as an encoder reads them, [n, 3, size, size]; the three channels differ."""
    return wave(5, (n, 3, size, size))


def make_points() -> Tensor:
    """Return two images' sets of points, [2, 3, 2, 2], (x, y) in [0, 1]."""
    return wave(11, (2, 3, 2, 2)).abs()


def shapes(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every entry of a state dict."""
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


@cache
def vit_b_shapes() -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the original ViT-B."""
    with torch.device("meta"):
        return shapes(import_original().build_sam_vit_b())


@cache
def tiny_shapes() -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tiny SAM."""
    return shapes(build_original(TINY_ENCODER))


def tiny_answers(size: int) -> tuple[Tensor, Tensor]:
    """Run the tiny original SAM on images of this size."""
    sam = build_original(TINY_ENCODER)
    sam.load_state_dict(tiny_weights())
    return answer_original(sam if size == SIZE else shrink_original(sam, size), make_images(size), make_points())


def tiny_weights() -> dict[str, Tensor]:
    """Return the weights of the tiny SAM under their original names."""
    return fill(tiny_shapes())


def write_tiny(folder: Path) -> Path:
    """Write the tiny SAM as the original package would, ``sam.pth``."""
    path = folder / "sam.pth"
    torch.save(tiny_weights(), path)
    return path
