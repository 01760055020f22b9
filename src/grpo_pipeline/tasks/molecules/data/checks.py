"""Check raw molecules: valid ones become canonical rows and a vocabulary, refused ones are listed with reasons."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pandas as pd
from rdkit import Chem, rdBase

from grpo_pipeline.runs.lookahead import map_ahead, usable_cores
from grpo_pipeline.runs.progress import track
from grpo_pipeline.tasks.data_root import check_root
from grpo_pipeline.tasks.molecules.data.params import SIZE_LIMIT, MoleculeDataParams
from grpo_pipeline.tasks.molecules.data.readers import Entry, Record, read_entry, read_records
from grpo_pipeline.tasks.molecules.data.standardise import standardise
from grpo_pipeline.tasks.molecules.graphs.decoding import build_molecule, sanitise
from grpo_pipeline.tasks.molecules.graphs.parsed_molecules import (
    ParsedMolecule,
    check_covered,
    parse_molecule,
)
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary, bonds_of
from grpo_pipeline.tasks.refusals import describe_failure, describe_refusals
from grpo_pipeline.tasks.row_error import RowError
from grpo_pipeline.tasks.text_lines import TextFile

logger = logging.getLogger(__name__)
COLUMNS = ("smiles", "name", "atoms", "lost_stereo", "row")
QUARANTINE_COLUMNS = ("row", "name", "text", "kind", "reason", "file")
REFUSED, DUPLICATE = "refused", "duplicate"
CHUNK = 2000  # molecules that one process checks at a time: about three seconds
Row = dict[str, Any]
CheckedMolecules = tuple[pd.DataFrame, pd.DataFrame, dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Draft:
    """A molecule that a graph can hold, before the vocabulary is known."""

    entry: Entry
    smiles: str
    parsed: ParsedMolecule
    lost_stereo: bool


def check_molecules(
    file: TextFile, generated: Mapping[str, object], params: MoleculeDataParams
) -> CheckedMolecules:
    """Sort the molecules, and stop if bad ones are not tolerated. Arguments and results as ``sort_molecules``.

    Raises:
        ValueError: also if a molecule is bad and ``on_bad_row`` is ``fail``, or no molecule is left.
    """
    found = sort_molecules(file, generated, params)
    refuse_molecules(found[0], found[1], params)
    return found


def sort_molecules(
    file: TextFile, generated: Mapping[str, object], params: MoleculeDataParams
) -> CheckedMolecules:
    """Check every molecule of the file and standardise it; bad molecules are listed and do not stop the function.

    Every molecule is decoded from its graph again; it is refused unless graph and canonical SMILES come back exactly.

    Args:
        file: the raw file.
        generated: report of ``generate_molecules``, which runs before this check.
        params: the ``molecules.data`` parameters.

    Returns:
        checked: ``COLUMNS``, a row per different canonical SMILES, in the order of the file.
        quarantine: ``QUARANTINE_COLUMNS``, a row per refused or repeated molecule, in the order of the file.
        vocabulary: ``Vocabulary.to_json``.
        data_report: counts, number of lost stereo marks, digest of the file.

    Raises:
        ValueError: if the root differs from the parameters', a column is missing, or the file holds no molecule.
    """
    check_root(
        Path(file.path).parent,
        params.root,
        section="molecules.data",
        variable="molecules_root",
    )
    drafts, listed = _draft_all(read_records(file, params), params)
    n_rows = len(drafts) + len(listed)
    if params.source.kind == "generated" and generated.get("molecules") != n_rows:
        raise ValueError(
            f"{file.path} must hold the {generated.get('molecules')} generated molecules while molecules.data.source.kind is "
            f"generated, got {n_rows} rows; set molecules.data.source: {{kind: smiles}} to read your own data"
        )
    vocabulary = find_vocabulary([draft.parsed for draft in drafts], params)
    kept: dict[str, Draft] = {}
    for draft in drafts:
        try:
            check_covered(draft.parsed, vocabulary)
        except RowError as error:
            listed.append(_refusal(draft.entry, str(error)))
            continue
        if draft.smiles in kept:
            first = kept[draft.smiles].entry.row
            listed.append(
                _refusal(
                    draft.entry,
                    f"the molecule {draft.smiles} is that of line {first}",
                    kind=DUPLICATE,
                )
            )
        else:
            kept[draft.smiles] = draft
    listed.sort(key=lambda row: row["row"])
    quarantine = pd.DataFrame(
        [{**row, "file": file.path} for row in listed], columns=list(QUARANTINE_COLUMNS)
    )
    if not n_rows:
        raise ValueError(
            f"{file.path} must hold molecules, got none; see molecules.data in docs/molecules/data.md"
        )
    if told := describe_bad(quarantine, n_left=len(kept)):
        logger.warning("%s; molecules.quarantine lists them all", told)
    checked = pd.DataFrame([_row(draft) for draft in kept.values()], columns=list(COLUMNS))
    report = _report(file, list(kept.values()), quarantine, params)
    return checked, quarantine, vocabulary.to_json(), {**report, "rows": n_rows}


def find_vocabulary(
    parsed_molecules: Sequence[ParsedMolecule], params: MoleculeDataParams
) -> Vocabulary:
    """Find the allowed classes: those that the parameters name, or else all in the data.

    An allowed element includes its aromatic form with a hydrogen, "[nH]", a class of its own if the data holds it.
    """
    found = {symbol for parsed in parsed_molecules for symbol in parsed.atoms}
    if params.atoms is not None:
        _check_elements(params.atoms)
        found = {*params.atoms} | {symbol for symbol in found if _element(symbol) in params.atoms}
    charges = (
        {charge for parsed in parsed_molecules for charge in parsed.charges}
        if params.charges is None
        else {*params.charges}
    )
    largest = max((len(parsed.atoms) for parsed in parsed_molecules), default=params.min_atoms)
    symbols = sorted(
        found,
        key=lambda symbol: (Chem.GetPeriodicTable().GetAtomicNumber(_element(symbol)), symbol),
    )
    return Vocabulary(
        tuple(symbols) or ("C",),
        (0, *sorted(charges - {0})),  # 0 first, whether it occurs or not
        bonds_of(params.bonds),
        params.max_atoms or largest,
    )


def round_trip(parsed: ParsedMolecule, smiles: str, params: MoleculeDataParams) -> None:
    """Refuse a molecule whose graph decodes to another molecule.

    Raises:
        RowError: if graph -> molecule -> SMILES or graph -> molecule -> graph changes it.
    """
    molecule = build_molecule(parsed)
    cause = sanitise(molecule)
    back = cause or Chem.MolToSmiles(molecule)
    if back != smiles:
        raise RowError(
            f"the graph must be that of one molecule, got {back!r} for {smiles!r}; leave it out or change the bonds"
        )
    if parse_molecule(molecule, params.bonds) != parsed:
        raise RowError(
            f"the graph must come back from its molecule, got another one for {smiles!r}; leave it out"
        )


def _draft_all(
    records: Iterator[Record], params: MoleculeDataParams
) -> tuple[list[Draft], list[Row]]:
    """Draft all molecules; processes share a file of more than two chunks, with the same result in the same order."""
    workers = usable_cores()
    draft = partial(_draft_chunk, params=params)
    found = draft(list(islice(records, 2 * CHUNK)))
    # Processes are started only for the remaining chunks: each imports for two seconds first.
    rest = iter(lambda: list(islice(records, CHUNK)), [])
    if third := next(rest, None):
        try:
            parts = map_ahead(
                draft,
                chain([third], rest),
                workers=workers,
                ahead=2 * workers if workers > 1 else 0,
                processes=workers > 1,
            )
            for part in track(parts, f"check molecules, {CHUNK} at a time"):
                found += part
        except BrokenProcessPool as error:
            raise RuntimeError(
                f"processes that check molecules must live, got {error}; free memory"
            ) from error
    return [one for one in found if isinstance(one, Draft)], [
        one for one in found if not isinstance(one, Draft)
    ]


def _draft_chunk(records: Sequence[Record], params: MoleculeDataParams) -> list[Draft | Row]:
    """Draft a few molecules: a draft or a refusal for each."""
    found: list[Draft | Row] = []
    with rdBase.BlockLogs():
        for entry in map(read_entry, records):
            try:
                found.append(_draft(entry, params))
            except RowError as error:
                found.append(_refusal(entry, str(error)))
    return found


def _draft(entry: Entry, params: MoleculeDataParams) -> Draft:
    if entry.molecule is None:
        raise RowError(entry.reason)
    # Checked first: the following steps take long for a large molecule.
    size = sum(atom.GetAtomicNum() != 1 for atom in entry.molecule.GetAtoms())
    if size > SIZE_LIMIT:
        raise RowError(
            f"a molecule must have at most {SIZE_LIMIT} heavy atoms, got {size}; leave it out"
        )
    standard = standardise(entry.molecule)
    size = standard.molecule.GetNumAtoms()
    if size < params.min_atoms:
        raise RowError(
            f"a molecule must have at least {params.min_atoms} heavy atoms, got {size}; leave it out"
        )
    parsed = parse_molecule(standard.molecule, params.bonds)
    round_trip(parsed, standard.smiles, params)
    # Without the RDKit molecule: all drafts of a large file are in memory.
    return Draft(replace(entry, molecule=None), standard.smiles, parsed, standard.lost_stereo)


def _element(symbol: str) -> str:
    """Return the element of a class of atoms: N of [nH]."""
    return symbol[1:-2].capitalize() if symbol.startswith("[") else symbol


def _check_elements(symbols: Sequence[str]) -> None:
    table = Chem.GetPeriodicTable()
    known = {table.GetElementSymbol(number) for number in range(1, 119)}
    if wrong := [symbol for symbol in symbols if symbol not in known]:
        raise ValueError(
            f"molecules.data.atoms must be elements, got {wrong}; write them as C, N, O, F"
        )


def _row(draft: Draft) -> Row:
    values = (
        draft.smiles,
        draft.entry.name,
        len(draft.parsed.atoms),
        draft.lost_stereo,
        draft.entry.row,
    )
    return dict(zip(COLUMNS, values, strict=True))


def _refusal(entry: Entry, reason: str, *, kind: str = REFUSED) -> Row:
    return {
        "row": entry.row,
        "name": entry.name,
        "text": entry.text,
        "kind": kind,
        "reason": reason,
    }


def describe_bad(quarantine: pd.DataFrame, *, n_left: int) -> str:
    """Write how many molecules were refused and why the first was; repetitions do not count."""
    bad = quarantine[quarantine["kind"] == REFUSED]
    where = f"{bad['file'].iloc[0]} line {bad['row'].iloc[0]}" if len(bad) else ""
    return describe_refusals(bad, n_left=n_left, where=where)


def refuse_molecules(
    checked: pd.DataFrame, quarantine: pd.DataFrame, params: MoleculeDataParams
) -> None:
    """Stop if bad molecules are not tolerated, once they are listed.

    Raises:
        ValueError: if a molecule is bad and ``on_bad_row`` is ``fail``, or none is left; names the first one.
    """
    bad, n_left = quarantine[quarantine["kind"] == REFUSED], len(checked)
    if len(bad) and (params.on_bad_row == "fail" or not n_left):
        first = bad.iloc[0]
        failure = describe_failure(
            f"{first['file']} line {first['row']}",
            first["reason"],
            n_refused=len(bad),
            n_rows=len(bad) + n_left,
            n_left=n_left,
            section="molecules.data",
        )
        raise ValueError(f"{failure}; molecules.quarantine lists them all")


def _report(
    file: TextFile, kept: Sequence[Draft], quarantine: pd.DataFrame, params: MoleculeDataParams
) -> dict[str, Any]:
    parsed_molecules = [draft.parsed for draft in kept]
    kinds = Counter(quarantine["kind"])
    return {
        "source": params.source.kind,
        "root": params.root,
        "sha256": {Path(file.path).name: file.digest()},
        "molecules": len(kept),
        "refused": kinds[REFUSED],
        "duplicates": kinds[DUPLICATE],
        "lost_stereo": sum(draft.lost_stereo for draft in kept),
        "bonds": params.bonds,
        "sizes": _tally(len(parsed.atoms) for parsed in parsed_molecules),
        "atoms": _tally(symbol for parsed in parsed_molecules for symbol in parsed.atoms),
        "charges": _tally(charge for parsed in parsed_molecules for charge in parsed.charges),
        "kinds_of_bonds": _tally(
            kind for parsed in parsed_molecules for _, _, kind in parsed.bonds
        ),
    }


def _tally(values: Iterable[Any]) -> dict[str, int]:
    return {str(value): number for value, number in sorted(Counter(values).items())}
