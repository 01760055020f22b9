"""Compute properties of single molecules, such as logP and validity, for rewards and reports."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from rdkit import Chem, RDConfig, rdBase
from rdkit.Chem import QED, Crippen
from torch import Tensor

from grpo_pipeline.rewards.functions import prepared_by
from grpo_pipeline.runs.lookahead import map_ahead, usable_cores
from grpo_pipeline.runs.progress import track

# The units in which the network is told the properties of a prompt.
#
# c = (property - mean) / spread          over the training split; 0 where the spread is 0


@dataclass(frozen=True)
class PropertyScales:
    """Mean and standard deviation of each property over the training split.

    Attributes:
        names: of the properties, in the order of the prompt.
        mean: one for each, in the property's own unit.
        spread: one for each; 0 where all training molecules have the same value.
    """

    names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()

    @classmethod
    def fit(cls, names: Sequence[str], values: NDArray[np.float64]) -> Self:
        """Return the scales of the training molecules' properties, [n, F]."""
        return cls(
            tuple(names), tuple(values.mean(axis=0).tolist()), tuple(values.std(axis=0).tolist())
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Mapping[str, float]]) -> Self:
        """Return what ``to_json`` wrote."""
        return cls(
            tuple(values),
            *(tuple(float(v[key]) for v in values.values()) for key in ("mean", "spread")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return property -> {mean, spread}."""
        each = zip(self.names, self.mean, self.spread, strict=True)
        return {name: {"mean": mean, "spread": spread} for name, mean, spread in each}

    def scale(self, values: NDArray[np.float64]) -> Tensor:
        """Return properties [P, F] as the network is told them, float32."""
        spread = np.array(self.spread)
        return torch.as_tensor(
            (values - np.array(self.mean)) / np.where(spread > 0, spread, 1.0), dtype=torch.float32
        )

    def apply(self, targets: Mapping[str, Sequence[float]], *, rows: int) -> Tensor:
        """Return named targets as the network is told them, float32 [rows, F].

        Raises:
            ValueError: if other properties are named, or their numbers of values differ from ``rows``.
        """
        found = {name: len(values) for name, values in targets.items()}
        if found != dict.fromkeys(self.names, rows):
            wanted = (
                f"{list(self.names)} with {rows} values each"
                if self.names
                else "empty: its prompts name no property"
            )
            raise ValueError(
                f"targets must be {wanted}, got {found}; name what the model was trained with"
            )
        columns = [np.asarray(targets[name], dtype=np.float64) for name in self.names]
        return self.scale(np.stack(columns, axis=1) if columns else np.zeros((rows, 0)))


# Synthetic accessibility: RDKit's own scorer, which its wheel carries among the contributions.

EASIEST, HARDEST = 1.0, 10.0


def accessibility_score(molecule: Chem.Mol) -> float:
    """Return how hard a molecule is to make, from 1 (easy) to 10 (hard).

    Frequencies of its fragments in PubChem, minus penalties for size, stereo centres, spiro and bridgehead atoms and large rings.
    Source: Ertl and Schuffenhauer, J. Cheminformatics 1:8, 2009, as in RDKit's Contrib/SA_Score, whose table of fragments is
    read with the first molecule.

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


PROPERTIES = ("qed", "logp", "sa")


def drug_likeness(molecule: Chem.Mol) -> float:
    """Return the quantitative estimate of drug-likeness in [0, 1]. Source: Bickerton et al., Nature Chemistry 4, 2012 (RDKit)."""
    return float(QED.qed(molecule))


def partition_coefficient(molecule: Chem.Mol) -> float:
    """Return the octanol-water partition coefficient, log10. Source: Wildman and Crippen, JCICS 39, 1999 (RDKit)."""
    return float(Crippen.MolLogP(molecule))


def tabulate_properties(smiles: Sequence[str]) -> pd.DataFrame:
    """Return ``smiles, qed, logp, sa`` (synthetic accessibility, 1 to 10) of valid molecules, one row each, in order."""
    with rdBase.BlockLogs():
        # One molecule in memory at a time.
        rows = [
            (
                drug_likeness(molecule),
                partition_coefficient(molecule),
                accessibility_score(molecule),
            )
            for molecule in map(Chem.MolFromSmiles, smiles)
        ]
    return pd.DataFrame(rows, columns=list(PROPERTIES), dtype=float).assign(smiles=list(smiles))[
        ["smiles", *PROPERTIES]
    ]


MEASURED_AT_ONCE = 2000  # molecules that one process measures at a time: about three seconds


def measure_all(smiles: Sequence[str]) -> pd.DataFrame:
    """Return ``tabulate_properties`` of many molecules, shared out to processes where there are more than a few thousand."""
    size = MEASURED_AT_ONCE
    chunks = [list(smiles[start : start + size]) for start in range(0, len(smiles), size)]
    if len(chunks) < 2:
        return tabulate_properties(smiles)
    workers = usable_cores()
    found = map_ahead(
        tabulate_properties, chunks, workers=workers, ahead=2 * workers, processes=workers > 1
    )
    return pd.concat(
        track(found, f"measure molecules, {size} at a time", total=len(chunks)), ignore_index=True
    )


# Rewards of single molecules: ``(smiles, references, **options) -> one number per molecule``, each in [0, 1].
#
# They run in reward processes and get canonical SMILES of valid molecules; the references are not read.

Texts = Sequence[str]
References = Sequence[Sequence[str]]


def qed(smiles: Texts, references: References) -> list[float]:
    """Return the drug-likeness of each molecule; see ``properties.qed``."""
    return [drug_likeness(read_molecule(text)) for text in smiles]


def logp(
    smiles: Texts, references: References, *, low: float, high: float, width: float
) -> list[float]:
    """Return how well logP lies in a window; see ``in_window`` and ``properties.logp``."""
    return [
        in_window(partition_coefficient(read_molecule(text)), low=low, high=high, width=width)
        for text in smiles
    ]


def size(
    smiles: Texts, references: References, *, low: float, high: float, width: float
) -> list[float]:
    """Return how well the number of heavy atoms lies in a window; see ``in_window``."""
    return [
        in_window(read_molecule(text).GetNumAtoms(), low=low, high=high, width=width)
        for text in smiles
    ]


@prepared_by(read_fragments)
def accessibility(smiles: Texts, references: References) -> list[float]:
    """Return (10 - score) / 9: 1 for the easiest molecules to make, 0 for the hardest; see ``accessibility_score``."""
    return [
        (HARDEST - accessibility_score(read_molecule(text))) / (HARDEST - EASIEST)
        for text in smiles
    ]


def wanted(smiles: Texts, references: References, *, patterns: Sequence[str]) -> list[float]:
    """Return the share of the SMARTS patterns that occur in each molecule."""
    compiled = [read_pattern(pattern) for pattern in patterns]
    molecules = [read_molecule(text) for text in smiles]
    return [
        sum(molecule.HasSubstructMatch(one) for one in compiled) / len(compiled)
        for molecule in molecules
    ]


def forbidden(smiles: Texts, references: References, *, patterns: Sequence[str]) -> list[float]:
    """Return 1 for each molecule in which none of the SMARTS patterns occurs, else 0."""
    compiled = [read_pattern(pattern) for pattern in patterns]
    molecules = [read_molecule(text) for text in smiles]
    return [
        float(not any(molecule.HasSubstructMatch(one) for one in compiled))
        for molecule in molecules
    ]


def in_window(value: float, *, low: float, high: float, width: float) -> float:
    """Return 1 inside a window, falling linearly to 0 over ``width`` on both sides.

    max(0, 1 - max(low - value, value - high, 0) / width)
    """
    return max(0.0, 1.0 - max(low - value, value - high, 0.0) / width)


@lru_cache(maxsize=4096)
def read_molecule(smiles: str) -> Chem.Mol:
    """Return a molecule; several rewards of one process share it.

    Raises:
        ValueError: for a SMILES that RDKit does not read.
    """
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        raise ValueError(
            f"a molecule must be a SMILES that RDKit reads, got {smiles!r}; reward valid molecules only"
        )
    return molecule


@lru_cache(maxsize=256)
def read_pattern(smarts: str) -> Chem.Mol:
    """Return a pattern.

    Raises:
        ValueError: for a SMARTS that RDKit does not read.
    """
    with rdBase.BlockLogs():
        pattern = Chem.MolFromSmarts(smarts)
    if pattern is None:
        raise ValueError(f"a pattern must be SMARTS that RDKit reads, got {smarts!r}; correct it")
    return pattern
