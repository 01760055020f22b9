"""Draw molecules for a table of sizes and counts, from the parameters or from a request."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.molecules.exported_model import ExportedDenoiser, draw_molecules

AT_ONCE, MOST_MOLECULES = 64, 1024
"""Molecules that are drawn together, and that one request to a server may ask for."""

ANSWERS = ("row", "sample", "size", "smiles", "is_valid", "cause")


def answer(model: ExportedDenoiser, table: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """Draw the molecules that a table asks for: those of all rows, or none after an error.

    Args:
        model: result of ``read_exported``.
        table: column ``size``, heavy atoms; ``count``, number of molecules (1 without the column). If the model's prompts name
            properties, a column with the wanted value of each.
        seed: seed of the molecules; those of a row follow from the seed and the row's number, which a slice of a table keeps.

    Returns:
        A row for each molecule: ``row`` of the table and ``sample``, counted from 0, ``size``, ``smiles`` ("" if it is not
            valid), ``is_valid`` and the reason if not.

    Raises:
        ValueError: a row is invalid. The sentence names the first such row, counted from 0.
    """
    if "size" not in table.columns:
        raise ValueError(
            f"the prompts must have a column 'size', got {list(table.columns)}; add it"
        )
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}; correct it")
    found: list[dict[str, Any]] = []
    # A slice of a table is part of a longer one: its rows keep their numbers, and so their molecules.
    numbers = table.index if isinstance(table.index, pd.RangeIndex) else range(len(table))
    for number, row in zip(numbers, table.to_dict("records"), strict=True):
        try:
            found += _draw_row(model, row, number, seed=seed)
        except ValueError as error:
            raise ValueError(f"row {number} of the prompts: {error}") from error
    return pd.DataFrame(found, columns=list(ANSWERS))


def _draw_row(
    model: ExportedDenoiser, row: Mapping[Any, Any], number: int, *, seed: int
) -> list[dict[str, Any]]:
    size, count = _whole(row["size"], "size"), _whole(row.get("count", 1), "count")
    if not 1 <= size <= model.nodes:
        raise ValueError(
            f"size must be from 1 to {model.nodes}, the largest molecule of the training, got {size}; correct it"
        )
    names = model.scales.names
    if lost := [name for name in names if name not in row]:
        raise ValueError(
            f"the model needs a wanted {' and '.join(names)}, got no {lost[0]}; add it"
        )
    rows: list[dict[str, Any]] = []
    for part, start in enumerate(range(0, count, AT_ONCE)):
        n = min(AT_ONCE, count - start)
        generator = step_generator(seed, number, part, stream=Stream.PREDICTION, device="cpu")
        wanted = {name: [float(row[name])] * n for name in names}
        drawn = draw_molecules(model, [size] * n, generator=generator, targets=wanted)
        rows += [
            {
                "row": number,
                "sample": start + place,
                "size": size,
                "smiles": one.smiles,
                "is_valid": one.is_valid,
                "cause": one.cause,
            }
            for place, one in enumerate(drawn)
        ]
    return rows


def _whole(value: Any, name: str) -> int:
    number = float(value) if str(value).strip() else np.nan
    if not np.isfinite(number) or number != int(number) or number < 1:
        raise ValueError(f"{name} must be a whole number from 1, got {value!r}; correct it")
    return int(number)


def answer_request(model: ExportedDenoiser, table: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """Draw the molecules of a request by ``answer``; refuses more than a server draws at once."""
    asked = len(table)
    if "count" in table and len(table):
        asked = int(np.nansum(pd.to_numeric(table["count"], errors="coerce")))
    if asked > MOST_MOLECULES:
        raise ValueError(
            f"a request must ask for at most {MOST_MOLECULES} molecules, got {asked}; send several"
        )
    return answer(model, table, seed=seed)


def sizes_and_counts(number: int, sizes: Sequence[int]) -> pd.DataFrame:
    """Ask for molecules, spread evenly over sizes and at most ``AT_ONCE`` in a row.

    Args:
        number: molecules in all.
        sizes: numbers of heavy atoms; the first ones get what cannot be spread.
    """
    even, left = divmod(number, len(sizes))
    counts = [even + (place < left) for place in range(len(sizes))]
    rows = [
        {"size": size, "count": min(AT_ONCE, count - start)}
        for size, count in zip(sizes, counts, strict=True)
        for start in range(0, count, AT_ONCE)
    ]
    return pd.DataFrame(rows, columns=["size", "count"])
