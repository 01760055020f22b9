"""Tell masks from images by words in names of folders, columns and files."""

from collections.abc import Sequence
from pathlib import Path

from grpo_pipeline.tasks.attention.data.row_paths import file_stem

# Words in names of folders, columns and files -> the mask that they mean.
MASKS = {
    "region_mask": ("gland", "region"),
    "bag_mask": ("trace", "needle", "bag"),
    "lesion_mask": (
        "mask",
        "seg",
        "annotation",
        "outline",
        "lesion",
        "tumor",
        "tumour",
        "contour",
        "roi",
        "truth",
    ),
}
# Words that mark a mask where folders are classes, which may have names such as lesion.
OUTLINES = ("mask", "seg", "annotation", "outline", "contour", "truth")


def mask_of(name: str) -> str | None:
    """Tell by its words which mask a folder, column or file holds; None for none."""
    text = name.lower()
    return next((key for key, words in MASKS.items() if any(word in text for word in words)), None)


def mask_files(files: Sequence[str]) -> list[str]:
    """Choose the files that are masks: below a folder of masks, or with the name of an image beside them and a word for masks."""
    stems: dict[Path, set[str]] = {}
    for file in files:
        stems.setdefault(Path(file).parent, set()).add(file_stem(file))
    found = []
    for file in files:
        home, stem = Path(file).parent, file_stem(file)
        begins = (stem[:end] for end in range(1, len(stem)))
        if _is_outline(home.as_posix()) or any(
            begin in stems[home] and _is_outline(stem[len(begin) :]) for begin in begins
        ):
            found.append(file)
    return found


def masks_of(pictures: Sequence[str], masks: Sequence[str]) -> dict[str, str]:
    """Find the masks of each picture, joined by semicolons; of one without any the empty text."""
    by_stem: dict[str, list[str]] = {}
    by_end: dict[str, list[str]] = {}
    for file in pictures:
        by_stem.setdefault(file_stem(file), []).append(file)
        by_end.setdefault(file_stem(file).partition("_")[2], []).append(file)
    found: dict[str, list[str]] = {file: [] for file in pictures}
    for mask in masks:
        stem = file_stem(mask)
        # The picture's name, and perhaps more: 001_segmentation of 001, but not of 00.
        begins = [
            stem[:end] for end in range(1, len(stem) + 1) if not stem[end : end + 1].isdigit()
        ]
        owners = [file for begin in begins for file in by_stem.get(begin, ())]
        if not owners:  # mask_001 of bus_001, where no other picture ends so
            end = "_".join(word for word in stem.split("_") if not _is_outline(word))
            alike = by_end.get(end, []) if end else []
            owners = alike if len(alike) == 1 else []
        for file in owners:
            if _is_beside(mask, file):
                found[file].append(mask)
    return {file: ";".join(own) for file, own in found.items()}


def _is_beside(mask: str, file: str) -> bool:
    """Check whether a mask is in the folder of a picture, or below one of masks beside it."""
    home = Path(mask).parent
    plain = Path(*(part for part in home.parts if not _is_outline(part)))
    above = Path(file).parent
    return above in (home, plain) or Path(*above.parts[1:]) == plain


def _is_outline(name: str) -> bool:
    return any(word in name.lower() for word in OUTLINES)
