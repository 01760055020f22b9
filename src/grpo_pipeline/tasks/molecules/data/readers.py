"""Read molecules from SMILES lines, a CSV column or SDF records; unreadable ones are listed with line and reason."""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from rdkit import Chem

from grpo_pipeline.tasks.csv_records import check_width, csv_records
from grpo_pipeline.tasks.molecules.data.params import CsvSource, MoleculeDataParams
from grpo_pipeline.tasks.row_error import RowError
from grpo_pipeline.tasks.text_lines import HEAD, TextFile, check_encoding, composed, numbered_lines

SDF_END = "$$$$"
COUNTS = re.compile(r"V[23]000\s*$")
"""End of the line of an SDF record that counts its atoms, the fourth."""

EXTENSION = re.compile(r"\|[^|]*\|")
"""What CXSMILES puts behind a SMILES: radicals, groups, coordinates, labels."""

OPEN_LABEL = re.compile(r"_?R\w*|_?AP\d*|.+_[ep]")
"""Labels of atoms that are no atoms: rests, places of attachment, queries and pseudo-atoms."""

READING = Chem.SmilesParserParams()
READING.sanitize, READING.removeHs, READING.strictCXSMILES = False, False, True


@dataclass(frozen=True)
class Entry:
    """A molecule as the file holds it.

    Attributes:
        row: line where it begins, from 1.
        name: its name in the file, or "".
        text: its SMILES, or "" in an SDF file.
        molecule: not yet sanitised; None where it cannot be read.
        reason: why it cannot be read, or "".
    """

    row: int
    name: str
    text: str
    molecule: Chem.Mol | None
    reason: str


@dataclass(frozen=True)
class Record:
    """The text of a molecule in a file, not yet parsed.

    Attributes:
        row: line where it begins, from 1.
        name: its name beside a SMILES in the file, or "".
        text: its SMILES, or the lines of its SDF record.
        is_block: whether it is an SDF record.
        reason: why it cannot be read, or "".
    """

    row: int
    name: str
    text: str
    is_block: bool = False
    reason: str = ""


def read_entry(record: Record) -> Entry:
    """Parse a record with RDKit."""
    if record.reason:
        return Entry(record.row, record.name, record.text, None, record.reason)
    if record.is_block:
        return _from_block(record.row, record.text)
    return _from_smiles(record.row, record.text, name=record.name)


def read_records(file: TextFile, params: MoleculeDataParams) -> Iterator[Record]:
    """Yield the text of every molecule of a file in its order.

    Raises:
        ValueError: if a column is missing, or the table is broken.
    """
    if isinstance(params.source, CsvSource):
        return _read_csv(file, params.source)
    return _read_sdf(file) if params.source.kind == "sdf" else _read_lines(file)


def _read_lines(file: TextFile) -> Iterator[Record]:
    """Read ``SMILES [|extension|] [name]`` from every line that is not blank."""
    for number, line in numbered_lines(file):
        words = line.decode(errors="surrogateescape").split(maxsplit=1)
        smiles, rest = words[0], words[1].strip() if len(words) > 1 else ""
        if rest.startswith("|"):
            found = EXTENSION.match(rest)
            end = found.end() if found else len(rest)  # one that does not end is no name
            smiles, rest = f"{smiles} {rest[:end]}", rest[end:].strip()
        yield Record(number, rest, smiles)


def _read_csv(file: TextFile, columns: CsvSource) -> Iterator[Record]:
    wanted = [name for name in (columns.smiles, columns.name) if name is not None]
    wanted = [composed(name) for name in wanted]
    for number, cells in csv_records(file, wanted, section="molecules.data.source"):
        try:
            check_width(cells, wanted)
        except RowError as error:
            yield Record(number, "", "", reason=str(error))
            continue
        name = "" if columns.name is None else (cells[composed(columns.name)] or "").strip()
        yield Record(number, name, (cells[composed(columns.smiles)] or "").strip())


def _read_sdf(file: TextFile) -> Iterator[Record]:
    begin, block = 1, list[str]()
    with file.open() as content:
        check_encoding(content.read(HEAD).replace(b"\r", b"\n"), file.path)
    with (
        file.open() as content,
        io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape") as lines,
    ):
        for number, line in enumerate(chain(lines, [SDF_END]), start=1):
            if line.rstrip() != SDF_END:
                block.append(line.rstrip("\n"))
                continue
            if any(map(str.strip, block)):
                yield Record(begin, "", "\n".join(block), is_block=True)
            begin, block = number + 1, []


def _from_smiles(row: int, text: str, *, name: str) -> Entry:
    try:
        _check_text(text, name)
        # RDKit reads up to a blank and would ignore the rest of a cell.
        smiles, extension = (*text.split(maxsplit=1), "", "")[:2]
        is_one = not extension or EXTENSION.fullmatch(extension) is not None
        molecule = Chem.MolFromSmiles(text, READING) if is_one and smiles else None
        if molecule is None or not molecule.GetNumAtoms():
            raise RowError(
                f"the SMILES must be one that RDKit reads, got {text[:80]!r}; correct it"
            )
        if extension:
            _check_extension(molecule, extension)
    except RowError as error:
        return Entry(row, _printable(name), _printable(text), None, str(error))
    return Entry(row, name, text, molecule, "")


def _check_extension(molecule: Chem.Mol, extension: str) -> None:
    """Refuse a CXSMILES extension that describes no single molecule: places of attachment, repeats, queries."""
    labels = [
        atom.GetProp("atomLabel") for atom in molecule.GetAtoms() if atom.HasProp("atomLabel")
    ]
    is_open = (
        bool(Chem.GetMolSubstanceGroups(molecule))
        or molecule.HasProp("_molLinkNodes")
        or any(OPEN_LABEL.fullmatch(label) for label in labels)
        or any(atom.HasQuery() for atom in molecule.GetAtoms())
        or any(bond.HasProp("_MolFileBondEndPts") for bond in molecule.GetBonds())
    )
    if is_open:
        raise RowError(
            f"the SMILES must be of one molecule, got {extension[:80]!r} behind it, which leaves something open; write the "
            "molecule that is meant"
        )


def _without_blank_lines(block: str) -> str:
    """Remove blank lines before the name of a record; the counts must be in line 4, so an empty name in line 1 stays."""
    lines = block.split("\n")
    counts = next((i for i, line in enumerate(lines) if COUNTS.search(line)), 3)
    blank = max(0, counts - 3)
    return block if any(map(str.strip, lines[:blank])) else "\n".join(lines[blank:])


def _from_block(row: int, block: str) -> Entry:
    block = _without_blank_lines(block)
    name = block.partition("\n")[0].strip()
    try:
        _check_text(block, name)
        molecule = Chem.MolFromMolBlock(block, sanitize=False, removeHs=False)
        if molecule is None or not molecule.GetNumAtoms():
            raise RowError(
                "the record must be a molecule that RDKit reads, got one that it does not; correct it"
            )
    except RowError as error:
        return Entry(row, _printable(name), "", None, str(error))
    return Entry(row, name, "", molecule, "")


def _check_text(*texts: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RowError(
                f"the text must be UTF-8, got {_printable(text[:80])!r}; convert the file"
            ) from error


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
