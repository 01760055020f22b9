"""Store a picture of a screen with few colours: a third of the bytes, and to the eye the same."""

from pathlib import Path

from PIL import Image

COLOURS = 128


def shrink(file: Path) -> None:
    """Write a PNG anew with a palette; one that has a palette stays as it is."""
    with Image.open(file) as picture:
        if picture.mode == "P":
            return
        small = picture.convert("RGB").quantize(
            COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
    small.save(file, optimize=True)
