"""Write ``fixtures/segment_anything.json``: what the original package answers, and the names of its ViT-B.

pip install segment-anything==1.0
python tests/tasks/attention/make_sam_fixture.py
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))

import sam_oracle as oracle


def answers(size: int) -> dict[str, Any]:
    """Run the tiny SAM, with weights by formula, on images of this size."""
    sam = oracle.build_original(oracle.TINY_ENCODER)
    sam.load_state_dict(oracle.fill(shapes(sam)))
    if size != oracle.SIZE:
        sam = oracle.shrink_original(sam, size)
    features, masks = oracle.answer_original(sam, oracle.make_images(size), oracle.make_points())
    return {"features": oracle.encode_array(features), "masks": oracle.encode_array(masks)}


def shapes(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every entry of a state dict."""
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def main() -> None:
    """Write the fixture, one line per section."""
    with torch.device("meta"):
        vit_b = shapes(oracle.import_original().build_sam_vit_b())
    tiny = shapes(oracle.build_original(oracle.TINY_ENCODER))
    sections = {
        "about": {"library": "segment-anything", "version": version("segment-anything"), "torch": torch.__version__},
        "vit_b": vit_b,
        "tiny": {"shapes": tiny, **{str(size): answers(size) for size in (oracle.SIZE, oracle.SIZE // 2)}},
    }
    lines = [f"{json.dumps(name)}: {json.dumps(section)}" for name, section in sections.items()]
    oracle.FIXTURE.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
