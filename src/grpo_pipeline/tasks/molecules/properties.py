"""Numbers about single molecules: what rewards are made of, what the reports describe."""

from collections.abc import Sequence

import pandas as pd
from rdkit import Chem, rdBase
from rdkit.Chem import QED, Crippen

from grpo_pipeline.tasks.molecules.synthesis import accessibility_score

PROPERTIES = ("qed", "logp", "sa")


def qed(molecule: Chem.Mol) -> float:
    """Return the quantitative estimate of drug-likeness in [0, 1]. Source: Bickerton et al., Nature Chemistry 4, 2012 (RDKit)."""
    return float(QED.qed(molecule))


def logp(molecule: Chem.Mol) -> float:
    """Return the octanol-water partition coefficient, log10. Source: Wildman and Crippen, JCICS 39, 1999 (RDKit)."""
    return float(Crippen.MolLogP(molecule))


def tabulate_properties(smiles: Sequence[str]) -> pd.DataFrame:
    """Return ``smiles, qed, logp, sa`` (synthetic accessibility, 1 to 10) of valid molecules, one row each, in order."""
    with rdBase.BlockLogs():
        molecules = [Chem.MolFromSmiles(text) for text in smiles]
        rows = [(qed(molecule), logp(molecule), accessibility_score(molecule)) for molecule in molecules]
    return pd.DataFrame(rows, columns=list(PROPERTIES), dtype=float).assign(smiles=list(smiles))[["smiles", *PROPERTIES]]
