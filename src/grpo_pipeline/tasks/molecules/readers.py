"""Molecules from files: SMILES lines, a CSV column, SDF records; each with its line, and what cannot be read with the reason."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from rdkit import Chem

from grpo_pipeline.tasks.csv_records import csv_records
from grpo_pipeline.tasks.molecules.data_params import ColumnParams, MoleculeDataParams
from grpo_pipeline.tasks.row_error import RowError
from grpo_pipeline.tasks.text_lines import TextFile, numbered_lines

SDF_END = "$$$$"


@dataclass(frozen=True)
class Entry:
    """One molecule of a file, as it stands there.

    Attributes:
        row: line where it begins, from 1.
        name: as the file says, or "".
        text: its SMILES, or "" in an SDF file.
        molecule: not yet sanitised; None where it cannot be read.
        reason: why it cannot be read, or "".
    """

    row: int
    name: str
    text: str
    molecule: Chem.Mol | None
    reason: str


def read_entries(file: TextFile, params: MoleculeDataParams) -> Iterator[Entry]:
    """Yield every molecule of a file in its order.

    Raises:
        ValueError: if a column is missing, or the table is broken.
    """
    if params.columns is not None:
        return _read_csv(file, params.columns)
    return _read_sdf(file) if params.source == "sdf" else _read_lines(file)


def _read_lines(file: TextFile) -> Iterator[Entry]:
    """Read ``SMILES [name]`` from every line that is not blank."""
    for number, line in numbered_lines(file):
        words = line.decode(errors="surrogateescape").split(maxsplit=1)
        yield _from_smiles(number, words[0], name=words[1].strip() if len(words) > 1 else "")


def _read_csv(file: TextFile, columns: ColumnParams) -> Iterator[Entry]:
    wanted = [name for name in (columns.smiles, columns.name) if name is not None]
    for number, cells in csv_records(file, wanted, section="molecules.data.columns"):
        name = "" if columns.name is None else (cells[columns.name] or "").strip()
        yield _from_smiles(number, (cells[columns.smiles] or "").strip(), name=name)


def _read_sdf(file: TextFile) -> Iterator[Entry]:
    begin, block = 1, list[str]()
    with file.open() as content, io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(chain(lines, [SDF_END]), start=1):
            if line.rstrip() != SDF_END:
                block.append(line.rstrip("\n"))
                continue
            if any(map(str.strip, block)):
                yield _from_block(begin, block)
            begin, block = number + 1, []


def _from_smiles(row: int, text: str, *, name: str) -> Entry:
    try:
        _check_text(text, name)
        # RDKit reads up to a blank and would leave the rest of a cell out.
        molecule = Chem.MolFromSmiles(text, sanitize=False) if len(text.split()) == 1 else None
        if molecule is None or not molecule.GetNumAtoms():
            raise RowError(f"the SMILES must be one that RDKit reads, got {text[:80]!r}; correct it")
    except RowError as error:
        return Entry(row, _printable(name), _printable(text), None, str(error))
    return Entry(row, name, text, molecule, "")


def _from_block(row: int, block: list[str]) -> Entry:
    name = block[0].strip()
    try:
        _check_text("\n".join(block), name)
        molecule = Chem.MolFromMolBlock("\n".join(block), sanitize=False, removeHs=False)
        if molecule is None or not molecule.GetNumAtoms():
            raise RowError("the record must be a molecule that RDKit reads, got one that it does not; correct it")
    except RowError as error:
        return Entry(row, _printable(name), "", None, str(error))
    return Entry(row, name, "", molecule, "")


def _check_text(*texts: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RowError(f"the text must be UTF-8, got {_printable(text[:80])!r}; convert the file") from error


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
