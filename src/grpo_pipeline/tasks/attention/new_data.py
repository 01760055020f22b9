"""Guess how a folder of images is described: by a CSV file with a row per image, or by a folder per class."""

from dataclasses import replace
from pathlib import Path

from grpo_pipeline.tasks.attention.data.planes import IMAGE_SUFFIXES
from grpo_pipeline.tasks.attention.guessing.environment import MEANINGS
from grpo_pipeline.tasks.attention.guessing.folders import of_folders
from grpo_pipeline.tasks.attention.guessing.index_file import INDEX, as_csv
from grpo_pipeline.tasks.attention.guessing.listed_files import list_files
from grpo_pipeline.tasks.attention.guessing.places import all_places
from grpo_pipeline.tasks.attention.guessing.table import of_table
from grpo_pipeline.tasks.new_data import (
    SPLIT,
    Found,
    Hints,
    UnclearDataError,
    find_table,
    read_table,
)

COLUMNS = tuple(MEANINGS)
FORM = "images with a CSV file or a folder per class (docs/attention/data.md)"


def guess(folder: Path, hints: Hints) -> Found | None:
    """Describe a folder with images; None where there is none.

    Raises:
        UnclearDataError: if columns, labels or what counts as positive cannot be told.
    """
    files = [
        path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if _is_image(path)
    ]
    if not files:
        _refuse_absent(folder, hints)
        return None
    table = find_table(folder, hints)
    if table is None:
        # A file that is named, and is no CSV, says nothing of images that lie beside it.
        return None if hints.table else of_folders(folder, files, hints)
    tables = table.name or "the tables of the splits"
    places = all_places(table, files)
    if not any(places.values()) and (listed := list_files(folder.resolve(), table, files)):
        note = f"{INDEX} is {tables} with the file of each row, which no cell names as it lies below the folder"
        table, places = listed, all_places(listed, files)
    elif not table.name:
        note = f"{INDEX} holds {tables}, with a column {SPLIT}"
    else:
        return of_table(table, places, files, hints)
    content = as_csv([[*table.columns], *zip(*table.columns.values(), strict=True)])
    found = of_table(replace(table, name="{here}/" + INDEX), places, files, hints)
    return replace(found, files={INDEX: content}, notes=(note, *found.notes))


def _refuse_absent(folder: Path, hints: Hints) -> None:
    """Refuse a table of images that do not lie below the folder."""
    listed = [hints.table] if hints.table else sorted(path.name for path in folder.glob("*.csv"))
    for name in listed:
        try:
            columns = read_table(folder, name).columns
        except UnclearDataError:  # no table of images
            continue
        for cells in columns.values():
            named = [cell for cell in cells if cell.lower().endswith(IMAGE_SUFFIXES)]
            if named and len(named) >= 0.9 * len(cells):
                raise UnclearDataError(
                    f"{folder / name} must name images below {folder}, got {named[0]}, and there is no image; give the folder "
                    f"that holds both: grpo new-data <folder> --table <the table, seen from there>"
                )


def _is_image(path: Path) -> bool:
    return (
        path.name.lower().endswith(IMAGE_SUFFIXES)
        and not path.name.startswith(".")
        and path.is_file()
    )
