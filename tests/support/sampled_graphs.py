"""Prediction rows of the molecule task: enumerated molecules, more or less of them broken by noise, as the task's own table."""

from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from rdkit import Chem

from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.tasks.molecules.data import generate
from grpo_pipeline.tasks.molecules.data.params import GeneratorParams
from grpo_pipeline.tasks.molecules.graphs.decoding import decode
from grpo_pipeline.tasks.molecules.graphs.encoding import encode
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.molecule_table import tabulate_molecules
from grpo_pipeline.tasks.molecules.graphs.parsed_molecules import parse_molecule
from grpo_pipeline.tasks.molecules.graphs.vocabulary import BONDS, Vocabulary
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward

ARMS = ("supervised", "grpo", "eager")
VOCABULARY = Vocabulary(("C", "N", "O", "F"), (0,), BONDS, 6)
COUNT = 48


def evaluation_params(**changes: Any) -> EvaluationParams:
    """Return how arms are compared, with changes."""
    names = {"task": "molecules", "split": "test", "control": "supervised", "baseline_arm": "grpo", "headline_rule": "policy"}
    names |= {"chance_rule": "start", "cluster": "sample_id"}
    numbers = {"seed": 0, "resamples": 50, "metric_options": {}}
    return EvaluationParams.model_validate({**names, **numbers, **changes})


def reward_params(*, logp: bool = True) -> MoleculeReward:
    """Return the parameters of a reward with or without a window of logP."""
    window = {"weight": 1.0, "low": 0.0, "high": 1.0, "width": 0.5} if logp else None
    return MoleculeReward.model_validate({"validity": {"weight": 1.0}, "logp": window, "invalid_penalty": 0.0})


@cache
def molecules() -> tuple[str, ...]:
    """Return a few hundred molecules of 2 to 6 atoms without charges; the training split is every other one."""
    section = {"seed": 0, "atoms": {"C": 5.0, "N": 1.0, "O": 1.0, "F": 1.0}, "min_atoms": 2, "max_atoms": 6, "per_size": 60}
    with patch.multiple(generate, FORBIDDEN=(), CHARGED=0.0):
        return tuple(generate.enumerate_molecules(GeneratorParams.model_validate(section)))


def encoded(smiles: list[str]) -> MoleculeGraphs:
    """Return molecules as graphs of one width."""
    return encode([parse_molecule(Chem.MolFromSmiles(text), "kekulised") for text in smiles], VOCABULARY, nodes=6)


def disturbed(graphs: MoleculeGraphs, share: float, *, seed: int) -> MoleculeGraphs:
    """Draw anew each bond with probability ``share``."""
    generator = torch.Generator().manual_seed(seed)
    is_hit = torch.rand(graphs.bonds.shape, generator=generator) < share
    drawn = torch.randint(len(BONDS), graphs.bonds.shape, generator=generator)
    upper = torch.where(is_hit & graphs.pair_mask, drawn, graphs.bonds).triu(diagonal=1)
    return MoleculeGraphs(graphs.atoms, graphs.charges, upper + upper.transpose(1, 2), graphs.sizes)


def rule_rows(rule: str, graphs: MoleculeGraphs) -> pd.DataFrame:
    """Return the rows of one rule; the reward is validity, and 1 more with a logP in the window."""
    known = set(molecules()[::2])
    rows = tabulate_molecules(graphs, decode(graphs, VOCABULARY), VOCABULARY, known)
    ids = {"sample_id": [f"s{i:03d}" for i in range(len(rows))], "prompt_id": [f"p{i // 4:02d}" for i in range(len(rows))]}
    parts = {"reward_validity": rows["is_valid"].astype(float), "reward_logp": rows["logp"].between(0.0, 1.0).astype(float)}
    return rows.assign(rule=rule, **ids, **parts, reward=parts["reward_validity"] + parts["reward_logp"])


def make_predictions(*, share: float, seed: int = 1) -> pd.DataFrame:
    """Return the rows of an arm that breaks this share of bonds: its policy, the start (the same in every arm), training."""
    chosen = [molecules()[place] for place in np.random.default_rng(0).permutation(len(molecules()))[:COUNT]]
    graphs = encoded(chosen)
    training = rule_rows("training", encoded(list(molecules()[::2])))
    rules = [rule_rows("policy", disturbed(graphs, share, seed=seed)), rule_rows("start", disturbed(graphs, 0.4, seed=99))]
    return pd.concat([*rules, training], ignore_index=True)


@cache
def all_arms() -> dict[str, pd.DataFrame]:
    """Return predictions of three arms; grpo breaks the fewest bonds."""
    shares = zip(ARMS, (0.3, 0.02, 0.1), strict=True)
    return {arm: make_predictions(share=share, seed=place) for place, (arm, share) in enumerate(shares)}
