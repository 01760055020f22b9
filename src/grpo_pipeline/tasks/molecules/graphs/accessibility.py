"""Score synthetic accessibility by the scorer that RDKit's wheel contains."""

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

from rdkit import Chem, RDConfig

EASIEST, HARDEST = 1.0, 10.0


def accessibility_score(molecule: Chem.Mol) -> float:
    """Score how hard a molecule is to synthesise, from 1 (easy) to 10 (hard).

    The score joins frequencies of its fragments in PubChem with penalties for size, stereo centres, spiro and bridgehead atoms
    and large rings. Source: Ertl and Schuffenhauer, J. Cheminformatics 1:8, 2009, in RDKit's Contrib/SA_Score. The first molecule
    reads the table of fragments.

    Raises:
        ValueError: for a molecule without atoms.
    """
    score = _scorer().calculateScore(molecule)
    if score is None:
        raise ValueError("a molecule must have atoms to be scored, got none; leave it out")
    return float(score)


def read_fragments() -> None:
    """Read the scorer's table of fragments, which takes a while; every process reads it once."""
    accessibility_score(Chem.MolFromSmiles("C"))


@cache
def _scorer() -> ModuleType:
    path = Path(RDConfig.RDContribDir) / "SA_Score" / "sascorer.py"
    if not path.is_file():
        raise ImportError(
            f"RDKit must bring its accessibility scorer, got nothing at {path}; install rdkit from its wheel"
        )
    spec = importlib.util.spec_from_file_location("sascorer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
