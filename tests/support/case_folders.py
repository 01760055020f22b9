"""A small data set with a folder per case: images or cines, masks, and ``info.json``."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FRAMES, HEIGHT, WIDTH = 3, 44, 60


def picture(rng: np.random.Generator, label: int) -> tuple[np.ndarray, np.ndarray]:
    """Return grey levels, uint8 [H, W], and the outline of a dark lesion, bool [H, W], empty where ``label`` is 0."""
    image = rng.integers(60, 255, (HEIGHT, WIDTH)).astype(np.uint8)
    lesion = np.zeros((HEIGHT, WIDTH), bool)
    if label:
        top, left = rng.integers(4, HEIGHT - 16), rng.integers(4, WIDTH - 16)
        lesion[top : top + 12, left : left + 12] = True
        image[lesion] //= 4
    return image, lesion


def save(path: Path, array: np.ndarray) -> None:
    """Write a picture, a mask as 0 and 255, or an NPY file, by the ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, array, allow_pickle=False)
    else:
        Image.fromarray(array.astype(np.uint8) * 255 if array.dtype == bool else array).save(path)


def write_info(folder: Path, **fields: Any) -> None:
    """Write the JSON file of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "info.json").write_text(json.dumps(fields))


def write_cases(root: Path, n: int, *, layout: str = "frames") -> None:
    """Write ``n`` cases of n / 2 patients; every other patient has cancer, and each picture is another one.

    Args:
        root: the data root.
        n: of cases, two for each patient.
        layout: ``image`` one image with two masks, ``frames`` three images with a mask each, ``cine`` an NPY file [T, H, W] with
            a mask of the same shape.
    """
    rng = np.random.default_rng(0)
    for number in range(n):
        label, folder = number // 2 % 2, root / f"case{number:02d}"
        shown = [picture(rng, label) for _ in range(1 if layout == "image" else FRAMES)]
        if layout == "image":
            save(folder / "image.png", shown[0][0])
            left = np.arange(WIDTH) < WIDTH // 2
            for name, half in (("mask.png", left), ("mask2.png", ~left)):
                save(folder / name, shown[0][1] & half)
        for frame, (image, lesion) in enumerate(shown if layout == "frames" else []):
            save(folder / f"frame_{frame}.png", image)
            if label:
                save(folder / f"lesion_{frame}.png", lesion)
        if layout == "cine":
            save(folder / "cine.npy", np.stack([image for image, _ in shown]))
            save(folder / "lesion.npy", np.stack([lesion for _, lesion in shown]))
        write_info(
            folder,
            patient=f"P{number // 2}",
            diagnosis="malignant" if label else "benign",
            age=None if number == 3 else 50 + number,
            birads=4 + number % 2 if label else 2,
            notes={"not": "read"},
        )
