"""Compute descriptors of single molecules; reward processes import them without pandas and torch."""

from rdkit import Chem
from rdkit.Chem import QED, Crippen


def drug_likeness(molecule: Chem.Mol) -> float:
    """Compute the estimate of drug-likeness (QED) in [0, 1]. Source: Bickerton et al., Nature Chemistry 4, 2012 (RDKit)."""
    return float(QED.qed(molecule))


def partition_coefficient(molecule: Chem.Mol) -> float:
    """Compute the octanol-water partition coefficient, log10. Source: Wildman and Crippen, JCICS 39, 1999 (RDKit)."""
    return float(Crippen.MolLogP(molecule))
