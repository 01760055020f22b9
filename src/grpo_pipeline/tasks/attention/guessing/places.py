"""Find the folders below which the cells of a column name files."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from grpo_pipeline.tasks.attention.guessing.mask_files import mask_of
from grpo_pipeline.tasks.new_data import Table


def all_places(table: Table, files: Sequence[str]) -> dict[str, Counter[str]]:
    """Count for each column the folders below which its cells name files."""
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
        {p: n for p, n in found.items() if n >= (0.5 if mask_of(p) else 0.9) * len(named)}
    )
