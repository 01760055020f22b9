"""Find the file of each row of a table whose cells name none as it lies below the folder."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from grpo_pipeline.tasks.attention.data.row_paths import file_stem
from grpo_pipeline.tasks.attention.guessing.index_file import INDEX
from grpo_pipeline.tasks.attention.guessing.mask_files import mask_files, masks_of
from grpo_pipeline.tasks.new_data import Table


def list_files(folder: Path, table: Table, files: Sequence[str]) -> Table | None:
    """Add a column with the file of each row, and one with its masks; None where no column tells nine rows in ten.

    A cell may be a whole path, a path seen from the table's own folder, one with backslashes, or a path or name without its
    ending.
    """
    here, masks = (folder / (table.name or INDEX)).parent, mask_files(files)
    pictures = sorted({*files} - {*masks})
    paths = {str(folder / file): file for file in pictures}
    by_stem: dict[str, list[str]] = {}
    for file in pictures:
        by_stem.setdefault(file_stem(file), []).append(file)

    def file_of(cell: str) -> str:
        plain = cell.replace("\\", "/")
        if (found := paths.get(os.path.normpath(here / plain))) is not None:
            return found
        same = [
            file
            for file in by_stem.get(plain.rpartition("/")[2], ())
            if f"/{file}".rpartition(".")[0].endswith(f"/{plain}")
        ]
        return same[0] if len(same) == 1 else ""

    told = [[file_of(cell) if cell else "" for cell in cells] for cells in table.columns.values()]
    found = max(told, key=lambda files: len({*files}))  # numbers of patients may be names, too
    if sum(map(bool, found)) < 0.9 * table.rows:
        return None
    outlines = masks_of([file for file in found if file], masks) | {"": ""}
    added = {"file_of_image": found}
    if any(outlines.values()):
        added["file_of_mask"] = [outlines[file] for file in found]
    return replace(table, columns={**table.columns, **added})
