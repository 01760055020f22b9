"""Standardise molecules: implicit hydrogens, no stereo marks, canonical order; or the reason why that is impossible."""

from dataclasses import dataclass

from rdkit import Chem

from grpo_pipeline.tasks.row_error import RowError

REMEDY = "correct it or leave it out"


@dataclass(frozen=True)
class Standard:
    """A molecule in its standard form.

    Attributes:
        smiles: canonical SMILES without stereo marks.
        molecule: parsed from ``smiles``, so that its atoms have the order of the text.
        lost_stereo: whether the original had a configuration that the graph cannot hold.
    """

    smiles: str
    molecule: Chem.Mol
    lost_stereo: bool


def standardise(molecule: Chem.Mol) -> Standard:
    """Bring a molecule into its standard form; the input is not yet sanitised.

    Numbers of atom maps are labels, not chemistry, and are dropped.

    Raises:
        RowError: for an impossible valence or ring, a dummy atom, an isotope, a radical, an explicit hydrogen, or a number of
            parts other than 1.
    """
    _sanitise(molecule)
    molecule = Chem.RemoveHs(molecule)
    for atom in molecule.GetAtoms():
        _check_atom(atom)
        atom.SetAtomMapNum(0)
    parts = len(Chem.GetMolFrags(molecule))
    if parts != 1:
        raise RowError(f"a molecule must be in one part, got {parts}; keep the part that is meant")
    lost_stereo = has_stereo(molecule)
    Chem.RemoveStereochemistry(molecule)
    smiles, settled = _settle(molecule)
    # Hydrogens that RDKit cannot make implicit and no configuration needs: H2, hydrides, bridges.
    if any(atom.GetAtomicNum() == 1 for atom in settled.GetAtoms()):
        raise RowError(
            f"every hydrogen must belong to one heavy atom, got one that does not in {smiles!r}; leave the molecule out"
        )
    return Standard(smiles, settled, lost_stereo=lost_stereo)


def has_stereo(molecule: Chem.Mol) -> bool:
    """Check whether an atom or a bond of the molecule has a configuration."""
    centres = any(
        atom.GetChiralTag() != Chem.ChiralType.CHI_UNSPECIFIED for atom in molecule.GetAtoms()
    )
    return centres or any(
        bond.GetStereo() > Chem.BondStereo.STEREOANY for bond in molecule.GetBonds()
    )


def _sanitise(molecule: Chem.Mol) -> None:
    problems = Chem.DetectChemistryProblems(molecule)
    if problems:
        message = " ".join(problems[0].Message().split())
        raise RowError(
            f"a molecule must have possible valences and rings, got {message!r}; {REMEDY}"
        )
    try:
        Chem.SanitizeMol(molecule)
    except Chem.MolSanitizeException as error:
        raise RowError(
            f"RDKit must be able to sanitise the molecule, got {' '.join(str(error).split())!r}; {REMEDY}"
        ) from error
    # Configurations of double bonds are marks on the bonds beside them until they are read.
    Chem.AssignStereochemistry(molecule, cleanIt=True)


def _check_atom(atom: Chem.Atom) -> None:
    what = f"atom {atom.GetIdx()} ({atom.GetSymbol()})"
    if atom.GetAtomicNum() == 0:
        raise RowError(f"every atom must be of an element, got a dummy as {what}; {REMEDY}")
    if atom.GetIsotope():
        raise RowError(
            f"a graph cannot hold an isotope, got mass {atom.GetIsotope()} for {what}; leave the molecule out"
        )
    if atom.GetNumRadicalElectrons():
        raise RowError(
            f"a graph cannot hold a radical, got {atom.GetNumRadicalElectrons()} unpaired electrons on {what}; {REMEDY}"
        )


def _settle(molecule: Chem.Mol) -> tuple[str, Chem.Mol]:
    """Write and read a molecule until text and atoms no longer change; returns both."""
    smiles = Chem.MolToSmiles(molecule)
    for _ in range(5):
        found = Chem.MolFromSmiles(smiles)
        if found is None:
            raise RowError(
                f"RDKit must read what it writes, got {smiles!r}; leave the molecule out"
            )
        again = Chem.MolToSmiles(found)
        if again == smiles:
            return smiles, found
        smiles = again
    raise RowError(
        f"a molecule must have one canonical SMILES, got no end of them from {smiles!r}; leave the molecule out"
    )
