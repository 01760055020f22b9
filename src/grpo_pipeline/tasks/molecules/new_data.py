"""Guess how a file of molecules is described: SMILES, a CSV or an SD file."""

from pathlib import Path

from grpo_pipeline.tasks.extras import require
from grpo_pipeline.tasks.new_data import Found, Hints, UnclearDataError, column_of, read_table

KINDS = {
    ".smi": "smiles",
    ".smiles": "smiles",
    ".txt": "smiles",
    ".sdf": "sdf",
    ".sd": "sdf",
    ".csv": "csv",
}
SMILES = ("smiles", "canonical_smiles", "isosmiles", "molecule", "structure", "mol")
NAMES = ("name", "id", "mol_id", "compound_id", "chembl_id", "zinc_id", "title")
COLUMNS = ("smiles", "name")
FORM = "a file of molecules (docs/molecules/data.md)"
TRIED, ENOUGH = 50, 0.8


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
    source = [f"      kind: {kind}"]
    if kind == "csv":
        columns = read_table(folder, name).columns
        smiles = column_of(columns, "smiles", SMILES, hints)
        title = column_of([c for c in columns if c != smiles], "name", NAMES, hints)
        source += [f"      smiles: {smiles}", f"      name: {title or 'null'}"]
    lines = [
        "molecules:",
        "  data:",
        "    source:",
        *source,
        "    on_bad_row: quarantine        # a molecule that is refused is listed and left out; fail: it stops the run",
    ]
    return Found(
        "molecules",
        {"molecules_file": name},
        "\n".join(lines) + "\n",
        (f"{name}: molecules as {kind}",),
    )


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

    with (folder / name).open(encoding="utf-8", errors="replace") as file:
        lines = [
            line.split()[0] for line, _ in zip(file, range(TRIED), strict=False) if line.strip()
        ]
    RDLogger.DisableLog("rdApp.*")
    try:
        read = sum(Chem.MolFromSmiles(text) is not None for text in lines)
    finally:
        RDLogger.EnableLog("rdApp.*")
    return bool(lines) and read >= ENOUGH * len(lines)
