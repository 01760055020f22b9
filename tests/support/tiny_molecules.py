"""Molecules that need every class: charges both ways, [nH] in several places, triple bonds, fused and charged rings."""

from rdkit import Chem

from grpo_pipeline.tasks.molecules.graphs.parsed_molecules import ParsedMolecule, parse_molecule
from grpo_pipeline.tasks.molecules.graphs.vocabulary import BondForm, Vocabulary, bonds_of

SMILES = (
    *("CO", "CC#N", "C[NH3+]", "CC(=O)[O-]", "C[N+](=O)[O-]", "[O-][n+]1ccccc1", "C[n+]1ccccc1", "c1cc[nH+]cc1", "C[N+](C)(C)C"),
    *("c1cc[nH]c1", "Cc1c[nH]cn1", "Cc1cnc[nH]1", "c1ccc2[nH]ccc2c1", "c1ccn2cccc2c1", "c1ccc2ccccc2c1", "O=c1cc[nH]cc1"),
    *("CS(=O)(=O)N", "C[S+](C)C", "FC(F)(F)c1ccccc1Cl", "BrC=CI", "C1CC2CCC1CC2", "CP(=O)(O)O", "c1ccsc1", "c1cnoc1"),
)


def canonical(smiles: str) -> str:
    """Return RDKit's canonical SMILES."""
    return Chem.MolToSmiles(Chem.MolFromSmiles(smiles))


def parsed(smiles: str, form: BondForm = "kekulised") -> ParsedMolecule:
    """Return the graph of a molecule, nodes in the order of the text."""
    return parse_molecule(Chem.MolFromSmiles(smiles), form)


def vocabulary(form: BondForm = "kekulised", max_atoms: int = 12) -> Vocabulary:
    """Return classes for all of ``SMILES``."""
    symbols = ("C", "N", "O", "F", "P", "S", "Cl", "Br", "I")
    return Vocabulary((*symbols, "[nH]") if form == "aromatic" else symbols, (0, -1, 1), bonds_of(form), max_atoms)
