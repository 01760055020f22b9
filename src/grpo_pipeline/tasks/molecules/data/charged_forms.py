"""Give acids and amines the charged form that they take in water."""

from collections.abc import Sequence

import numpy as np
from rdkit import Chem

ACID = Chem.MolFromSmarts("[OX2H1;$(OC=O)]")
# An amine whose lone pair is its own: no amide, no aniline, no N-N, N-O or N-F.
AMINE = Chem.MolFromSmarts("[NX3;$([H0,H1,H2]);!$(N-[#6]=,#,:*);!$(N~[!#6])]")


def charge_some(level: Sequence[str], share: float, *, generator: np.random.Generator) -> list[str]:
    """Charge a random share of the molecules that have a charged form; returns all molecules, different and sorted."""
    is_drawn = generator.random(len(level)) < share
    return sorted(
        {
            charged_form(smiles) if drawn else smiles
            for smiles, drawn in zip(level, is_drawn, strict=True)
        }
    )


def charged_form(smiles: str) -> str:
    """Charge a molecule's first acid (anion) and its first amine (cation), where it has them."""
    molecule = Chem.MolFromSmiles(smiles)
    for pattern, charge in ((ACID, -1), (AMINE, 1)):
        match = molecule.GetSubstructMatch(pattern)
        if match:
            atom = molecule.GetAtomWithIdx(match[0])
            hydrogens = atom.GetTotalNumHs() + charge
            atom.SetFormalCharge(charge)
            atom.SetNumExplicitHs(hydrogens)
            atom.SetNoImplicit(True)
    Chem.SanitizeMol(molecule)
    return str(Chem.MolToSmiles(molecule))
