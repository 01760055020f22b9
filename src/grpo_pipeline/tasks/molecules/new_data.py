"""Guess how a file of molecules is described: SMILES, a CSV or an SD file."""

from itertools import islice
from pathlib import Path

from grpo_pipeline.tasks.extras import require
from grpo_pipeline.tasks.new_data import (
    TABLES,
    Found,
    Hints,
    UnclearDataError,
    column_of,
    read_table,
)

KINDS = {
    ".smi": "smiles",
    ".smiles": "smiles",
    ".txt": "smiles",
    ".sdf": "sdf",
    ".sd": "sdf",
    **dict.fromkeys(TABLES, "csv"),
}
SMILES = ("smiles", "canonical_smiles", "isosmiles", "molecule", "structure", "mol")
NAMES = ("name", "id", "mol_id", "compound_id", "chembl_id", "zinc_id", "title")
COLUMNS = ("smiles", "name")
FORM = "a file of molecules (docs/molecules/data.md)"
TRIED, ENOUGH = 50, 0.8
SMALL = 12  # atoms: memory and time of a graph grow with their square
LARGE = [
    "  denoiser: {width: 64, pair_width: 32}       # half of conf/base: graphs of this size cost ten times as much and more",
    "  trajectory: &trajectory {steps_per_chunk: 5}  # bounds the memory of an update",
    "  training: &training {batch_size: 8}",
    "  warm_start:",
    "    training: {batch_size: 64}",
    "  eager:",
    "    trajectory: *trajectory",
    "    training: *training",
]
"""What is smaller for larger molecules: the sizes of ``conf/zinc``, and half of its batch in the warm start."""


def guess(folder: Path, hints: Hints) -> Found | None:
    """Describe a file of molecules; None where there is none.

    Raises:
        UnclearDataError: if there are several, or the column of SMILES cannot be told.
        ModuleNotFoundError: if RDKit is not installed.
    """
    files = (
        [hints.table] if hints.table else sorted(p.name for p in folder.iterdir() if p.is_file())
    )
    kinds = {
        name: KINDS[suffix] for name in files if (suffix := Path(name).suffix.lower()) in KINDS
    }
    told = {name: kind for name, kind in kinds.items() if _is_molecules(folder, name, kind, hints)}
    if not told:
        return None
    if len(told) > 1:
        raise UnclearDataError(
            f"{folder} must have one file of molecules, got {', '.join(told)}; name it: --table {next(iter(told))}"
        )
    [(name, kind)] = told.items()
    source, smiles = [f"      kind: {kind}"], ""
    if kind == "csv":
        columns = read_table(folder, name).columns
        smiles = column_of(columns, "smiles", SMILES, hints) or ""
        title = column_of([c for c in columns if c != smiles], "name", NAMES, hints)
        source += [f"      smiles: {smiles}", f"      name: {title or 'null'}"]
    lines = [
        "molecules:",
        "  data:",
        "    source:",
        *source,
        "    on_bad_row: quarantine        # a molecule that is refused is listed and left out; fail: it stops the run",
    ]
    largest = _largest(folder, name, kind, smiles)
    notes = [f"{name}: molecules as {kind}"]
    if largest > SMALL:
        lines += LARGE
        notes.append(
            f"up to {largest} atoms in the first molecules: network and batches are smaller than those of conf/base, which are "
            f"for molecules of {SMALL} atoms"
        )
    return Found("molecules", {"molecules_file": name}, "\n".join(lines) + "\n", tuple(notes))


def _largest(folder: Path, name: str, kind: str, smiles: str) -> int:
    """Count the heavy atoms of the largest of the first molecules; 0 if none of them can be read."""
    require("rdkit", extra="molecules")
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        if kind == "sdf":
            found = [*islice(Chem.SDMolSupplier(str(folder / name)), TRIED)]
        elif kind == "csv":
            cells = read_table(folder, name).columns[smiles][:TRIED]
            found = [Chem.MolFromSmiles(cell) for cell in cells]
        else:
            found = [Chem.MolFromSmiles(text) for text in _first_words(folder / name)]
    return max((one.GetNumHeavyAtoms() for one in found if one is not None), default=0)


def _first_words(path: Path) -> list[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return [line.split()[0] for line in islice(file, TRIED) if line.strip()]


def _is_molecules(folder: Path, name: str, kind: str, hints: Hints) -> bool:
    if not (folder / name).is_file():
        raise UnclearDataError(
            f"--table must be a file below {folder}, got {name!r}; correct the name"
        )
    if kind == "csv":
        return column_of(read_table(folder, name).columns, "smiles", SMILES, hints) is not None
    if kind == "sdf":
        return True
    require("rdkit", extra="molecules")
    from rdkit import Chem, RDLogger

    lines = _first_words(folder / name)
    RDLogger.DisableLog("rdApp.*")
    try:
        read = sum(Chem.MolFromSmiles(text) is not None for text in lines)
    finally:
        RDLogger.EnableLog("rdApp.*")
    return bool(lines) and read >= ENOUGH * len(lines)
