"""Guess how a folder of images is described: by a CSV file with a row per image, or by a folder per class."""

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from grpo_pipeline.tasks.attention.data.file_checks import file_stem
from grpo_pipeline.tasks.attention.data.planes import IMAGE_SUFFIXES
from grpo_pipeline.tasks.new_data import (
    SPLIT,
    Found,
    Hints,
    Table,
    UnclearDataError,
    column_of,
    find_table,
    flow,
    line,
    read_table,
)
from grpo_pipeline.tasks.splits import SPLIT_OF

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
NAMES = {
    "label": (
        "label",
        "class",
        "diagnosis",
        "pathology",
        "target",
        "category",
        "histology",
        "malignancy",
        "y",
        "result",
        "dx",
    ),
    "patient_id": (
        "patient_id",
        "patient",
        "subject",
        "subject_id",
        "case",
        "case_id",
        "person",
        "pid",
        "lesion_id",
        "similarity_group",
        "group",
    ),
    "center": ("center", "centre", "site", "hospital", "institution", "scanner"),
    "split": ("split", "fold", "subset", "partition", "set", "part"),
    "involvement": ("involvement", "cancer_percent", "percent_cancer"),
    "grade_group": ("grade_group", "isup", "isup_grade", "gleason_grade_group"),
    "core_id": ("core_id", "core", "image_id", "id"),
}
# Key of ``attention.data.columns`` -> what the environment says of it.
COLUMNS = {
    "image": "files of images",
    "region_mask": "where points may fall; null: anywhere",
    "bag_mask": "where the label is known; null: the region",
    "lesion_mask": "outlines, for evaluation alone; null: unknown",
    "label": "what is to be told from an image",
    "involvement": "share of the image that is positive; null: unknown",
    "grade_group": "null: unknown",
    "patient_id": "never divided between splits",
    "center": "null: one center",
    "core_id": "null: file name of the image",
    "split": "train, val, test; null: drawn by attention.split",
}
POSITIVE = (
    "1",
    "yes",
    "true",
    "positive",
    "pos",
    "malignant",
    "cancer",
    "tumor",
    "tumour",
    "carcinoma",
    "adenocarcinoma",
    "abnormal",
    "disease",
    "diseased",
    "lesion",
)
NEGATIONS = ("no", "non", "not", "without", "negative", "benign")
FORM = "images with a CSV file or a folder per class (docs/attention/data.md)"
MOST_CLASSES = 20
INDEX = "index.csv"
WORKBOOKS = (".xlsx", ".xls", ".ods")


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
        return None if hints.table else _of_folders(folder, files, hints)
    tables = table.name or "the tables of the splits"
    places = _all_places(table, files)
    if not any(places.values()) and (listed := _list_files(folder.resolve(), table, files)):
        note = f"{INDEX} is {tables} with the file of each row, which no cell names as it lies below the folder"
        table, places = listed, _all_places(listed, files)
    elif not table.name:
        note = f"{INDEX} holds {tables}, with a column {SPLIT}"
    else:
        return _of_table(table, places, files, hints)
    content = _as_csv([[*table.columns], *zip(*table.columns.values(), strict=True)])
    found = _of_table(replace(table, name="{here}/" + INDEX), places, files, hints)
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


def _of_table(
    table: Table, places: Mapping[str, Counter[str]], files: Sequence[str], hints: Hints
) -> Found:
    """Describe a table; ``places`` are the folders below which the cells of each column name files."""
    columns: dict[str, str | None] = dict.fromkeys(("image", *MASKS))
    folders = dict.fromkeys(("image", *MASKS), "")
    named = [
        (column, place) for column, found in places.items() for place, _ in found.most_common()
    ]
    # A lone folder holds the images, whatever it is called: tumor_images, say. Beside other images it does not.
    if len(named) == 1 and "image" not in hints.columns:
        _refuse_lone_masks(table, *named[0], files)
    for column, place in named:
        mask = _mask_of(f"{column if place == '' else ''} {place}") if len(named) > 1 else None
        key = mask or "image"
        if columns[key] is None:
            columns[key], folders[key] = column, place
    for key in ("image", *MASKS):
        if (chosen := column_of(table.columns, key, (), hints)) is not None:
            columns[key] = chosen
            folders[key] = next((place for place, _ in places[chosen].most_common()), "")
    if columns["image"] is None:
        raise UnclearDataError(
            f"{table.name} must have a column with files of images below the folder, got {', '.join(table.columns)}, and none of "
            f"them names a file such as {files[0]}; name it: --column image=<column>"
        )
    taken = {columns[key] for key in columns}
    rest = [column for column in table.columns if column not in taken]
    for key, names in NAMES.items():
        columns[key] = column_of(table.columns if key in hints.columns else rest, key, names, hints)
    if columns["split"] and not {value.lower() for value in table.values(columns["split"])} <= {
        *SPLIT_OF
    }:
        columns["split"] = None
    columns["core_id"] = _unique(table, columns["core_id"], columns["image"])
    label = columns["label"] or _only_label(table, rest, [c for c in columns.values() if c])
    numeric = [
        c for c in rest if c not in {*columns.values(), label} and _is_numeric(table.columns[c])
    ]
    described: dict[str, str | None] = {**columns, "label": label}
    note = f"{table.rows} rows of {Path(table.name).name}, {len(files)} image files"
    return _describe(
        described,
        folders,
        table.values(label),
        hints,
        note=note,
        manifest=table.name,
        numeric=numeric,
    )


def _refuse_lone_masks(table: Table, column: str, place: str, files: Sequence[str]) -> None:
    """Refuse masks in the place of images, which the table does not name."""
    cells = {
        f"{place}/{c.strip()}".lstrip("/") for one in table.columns[column] for c in one.split(";")
    }
    homes = {Path(cell).parent for cell in cells}
    others = [file for file in files if file not in cells]
    if not _mask_of(column):  # a folder may be called after what its images show
        others = [file for file in others if Path(file).parent not in homes and _mask_of(place)]
    if others:
        raise UnclearDataError(
            f"{table.name} must name the image of each row, got {column!r}, which seems to name masks, and no column that names "
            f"{others[0]}; add one, or, if these are the images: --column image={column}"
        )


def _of_folders(folder: Path, files: Sequence[str], hints: Hints) -> Found:
    """List the images of a folder per class; above the classes may stand ``train/``, ``val/`` and ``test/``, and lone folders."""
    masks = _masks(files)
    pictures = sorted({*files} - {*masks})
    above = os.path.commonpath([Path("/", file).parent for file in pictures or files])
    parts = {file: Path("/", file).relative_to(above).parts for file in pictures}
    tops = {p[0].lower() for p in parts.values()}
    has_splits = all(len(p) > 2 for p in parts.values()) and tops <= {*SPLIT_OF}
    depth = 1 if has_splits else 0
    classes = {p[depth] for p in parts.values() if len(p) > depth + 1}
    if len(classes) < 2 or any(len(p) <= depth + 1 for p in parts.values()):
        books = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in WORKBOOKS)
        remedy = "put the images of each class into a folder of its own"
        if books:
            remedy = f"save the sheet of {books[0]} as CSV, or {remedy}"
        raise UnclearDataError(
            f"{folder} must have a CSV file with a row per image, or a folder per class, got {len(files)} images and neither; "
            f"labels are needed to train: {remedy}"
        )
    rows, outlines = [("image", "class", "split", "mask")], _masks_of(pictures, masks)
    for file, p in parts.items():
        split = SPLIT_OF[p[0].lower()] if has_splits else ""
        rows.append((file, p[depth], split, outlines[file]))
    columns: dict[str, str | None] = {
        "image": "image",
        "lesion_mask": "mask" if any(row[3] for row in rows[1:]) else None,
        "label": "class",
        "split": "split" if has_splits else None,
        "core_id": "image"
        if len({file_stem(p[-1]) for p in parts.values()}) < len(parts)
        else None,
    }
    note = f"{len(pictures)} images in {len(classes)} folders, one per class; {INDEX} lists them"
    manifest = "{here}/" + INDEX
    found = _describe(columns, {}, sorted(classes), hints, note=note, manifest=manifest, numeric=[])
    return replace(found, files={INDEX: _as_csv(rows)})


def _list_files(folder: Path, table: Table, files: Sequence[str]) -> Table | None:
    """Add a column with the file of each row, and one with its masks; None where no column tells nine rows in ten.

    A cell may be a whole path, a path seen from the table's own folder, one with backslashes, or a path or name without its
    ending.
    """
    here, masks = (folder / (table.name or INDEX)).parent, _masks(files)
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
    outlines = _masks_of([file for file in found if file], masks) | {"": ""}
    added = {"file_of_image": found}
    if any(outlines.values()):
        added["file_of_mask"] = [outlines[file] for file in found]
    return replace(table, columns={**table.columns, **added})


def _as_csv(rows: Iterable[Sequence[str]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _describe(
    columns: Mapping[str, str | None],
    folders: Mapping[str, str],
    values: Sequence[str],
    hints: Hints,
    *,
    note: str,
    manifest: str,
    numeric: Sequence[str],
) -> Found:
    positive = _positive(values, hints)
    negative = [value for value in values if value not in positive]
    patient = columns.get("patient_id")
    notes = [
        note,
        f"label: {columns['label']}, positive {', '.join(positive)}; negative {', '.join(negative)}",
    ]
    if patient is None:
        notes.append(
            "no column of patients: every image counts as a patient of its own. Where one has several images, name the column, "
            "--column patient_id=<column>, or the same patient may be in training and test"
        )
    used = {**columns, "patient_id": patient or columns["image"]}
    lines = [
        "attention:",
        "  data:",
        "    source: manifest",
        line("    columns:", "key: column of your table; docs/attention/data.md"),
        *(line(f"      {key}: {flow(used.get(key))}", COLUMNS[key]) for key in COLUMNS),
        line("      clinical: []", _clinical(numeric)),
    ]
    if any(folders.values()):
        lines.append(line("    folders:", "put before the cells"))
        lines += [f"      {key}: {flow(place)}" for key, place in folders.items()]
    lines += [
        "    label:",
        line(f"      positive: {flow(positive)}", "cells that mean label 1"),
        f"      negative: {flow(negative)}",
        line(
            "    on_bad_row: quarantine", "a bad row is listed and left out; fail: it stops the run"
        ),
    ]
    text = "\n".join(lines) + "\n"
    return Found("attention", {"attention_manifest": manifest}, text, tuple(notes))


def _clinical(numeric: Sequence[str]) -> str:
    if not numeric:
        return "no column of numbers"
    return f"numbers; name those that are known before the diagnosis: {', '.join(numeric)}"


def _positive(values: Sequence[str], hints: Hints) -> list[str]:
    if unknown := sorted({*hints.positive} - {*values}):
        raise UnclearDataError(
            f"--positive must be values of the label, {', '.join(values)}, got {', '.join(unknown)}"
        )
    found = list(hints.positive) or [value for value in values if _sounds_positive(value)]
    if not found or len(found) == len(values):
        raise UnclearDataError(
            f"the label must have a value that means positive and one that does not, got {', '.join(values[:MOST_CLASSES])}; "
            "name what is positive: --positive <value>, once for each"
        )
    return found


def _only_label(table: Table, columns: Sequence[str], taken: Sequence[str]) -> str:
    most = min(MOST_CLASSES, table.rows // 2)  # a name of each row is no class
    found = [c for c in columns if c not in taken and 2 <= len(table.values(c)) <= most]
    if len(found) > 1 and _are_one_class_each(table, found):
        raise UnclearDataError(
            f"{', '.join(found)} have 1 where a row is of that class; name what is to be told from the others: "
            f"--column label={found[0]}"
        )
    if len(found) != 1:
        raise UnclearDataError(
            f"{table.name} must have a column with the label, got {', '.join(table.columns)}, of which "
            f"{', '.join(found) or 'none'} may be one; name it: --column label=<column>"
        )
    return found[0]


def _are_one_class_each(table: Table, columns: Sequence[str]) -> bool:
    """Check whether each row has 1 in one of the columns, and 0 in the others."""
    rows = zip(*(table.columns[column] for column in columns), strict=True)
    marks = (sorted(cell.removesuffix(".0") for cell in row) for row in rows)
    return all(row == ["0"] * (len(columns) - 1) + ["1"] for row in marks)


def _unique(table: Table, column: str | None, image: str) -> str | None:
    """Choose the column of unique names: the named one, none if the files' own names are unique, else that of the files."""
    if column is not None and len(set(table.columns[column])) == table.rows:
        return column
    return None if len({file_stem(c) for c in table.columns[image]}) == table.rows else image


def _all_places(table: Table, files: Sequence[str]) -> dict[str, Counter[str]]:
    return {column: _places(cells, files) for column, cells in table.columns.items()}


def _places(cells: Sequence[str], files: Sequence[str]) -> Counter[str]:
    """Count the folders below which the cells of a column name files; those of nine cells in ten stay."""
    named = [cell.split(";")[0].strip() for cell in cells if cell]
    by_name: dict[str, list[str]] = {}
    for file in files:
        by_name.setdefault(Path(file).name, []).append(file)
    found: Counter[str] = Counter()
    for cell in named:
        for file in by_name.get(Path(cell).name, ()):
            if file == cell or file.endswith(f"/{cell}"):
                found[file[: -len(cell)].rstrip("/")] += 1
    # A mask may be missing where nothing is to be seen: half of the cells are enough for one.
    return Counter(
        {p: n for p, n in found.items() if n >= (0.5 if _mask_of(p) else 0.9) * len(named)}
    )


def _mask_of(name: str) -> str | None:
    """Tell by its words which mask a folder, column or file holds; None for none."""
    text = name.lower()
    return next((key for key, words in MASKS.items() if any(word in text for word in words)), None)


def _masks(files: Sequence[str]) -> list[str]:
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


def _is_outline(name: str) -> bool:
    return any(word in name.lower() for word in OUTLINES)


def _masks_of(pictures: Sequence[str], masks: Sequence[str]) -> dict[str, str]:
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


def _is_image(path: Path) -> bool:
    return (
        path.name.lower().endswith(IMAGE_SUFFIXES)
        and not path.name.startswith(".")
        and path.is_file()
    )


def _sounds_positive(value: str) -> bool:
    words = {*re.findall(r"[a-z0-9]+", value.lower())}
    return bool(words & {*POSITIVE}) and not words & {*NEGATIONS}


def _is_numeric(cells: Sequence[str]) -> bool:
    known = [cell for cell in cells if cell]
    try:
        return len({float(cell) for cell in known}) > 2
    except ValueError:
        return False
