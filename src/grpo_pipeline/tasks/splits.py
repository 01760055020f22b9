"""Names of the splits of a data set, as people write them."""

import re

SPLIT_OF = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Name in a cell, or of a folder or file -> split."""


def split_name_in(name: str) -> str | None:
    """Find the only word of a file name that names a split, such as ``valid`` in ``labels_valid.csv``, or return None."""
    words = [word for word in re.findall(r"[a-z]+", name.lower()) if word in SPLIT_OF]
    return words[0] if len(words) == 1 else None
