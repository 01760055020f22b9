import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from scipy.stats import wasserstein_distance

from grpo_pipeline.pipelines.evaluation.comparison import compare
from grpo_pipeline.pipelines.evaluation.nodes import build_suite
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.tasks.molecules.metrics import METRICS, add_training
from grpo_pipeline.tasks.molecules.metrics import build_suite as build

SMILES = ["CCO", "CCO", "CCN", "", "CCC", "", "CCF", "CCN"]
KNOWN = {"CCC"}


def rows(smiles=SMILES, *, rule="policy", reward=1.0, shift=0.0):
    valid = np.asarray([bool(text) for text in smiles])
    count = len(smiles)
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "sample_id": [f"s{place}" for place in range(count)],
            "prompt_id": [f"p{place // 2}" for place in range(count)],
            "rule": rule,
            "smiles": smiles,
            "is_valid": valid.astype(int),
            "sanitises": 1,
            "is_connected": valid.astype(int),
            "fragment_is_valid": 1,
            "n_atoms": 3 + np.arange(count) % 2,
            "stable_atoms": 3,
            "is_stable": (np.arange(count) % 2 == 0).astype(int),
            "is_known": np.where(valid, [float(text in KNOWN) for text in smiles], np.nan),
            "qed": np.where(valid, generator.random(count), np.nan),
            "logp": np.where(valid, generator.normal(size=count) + shift, np.nan),
            "sa": np.where(valid, 2.0, np.nan),
            "reward": reward + generator.random(count),
            "atoms_C": generator.integers(1, 5, size=count),
            "atoms_O": generator.integers(0, 3, size=count),
            "bonds_single": 2,
            "valency_4": generator.integers(0, 2, size=count),
        }
    )


def both():
    training = rows(["CCC", "CCF", "CCCC", "CO"], rule="training", shift=0.5)
    return add_training(pd.concat([rows(), training], ignore_index=True)), training


def values(table, weights=None):
    weights = np.ones((1, len(table))) if weights is None else weights
    return {name: metric(table, weights) for name, metric in METRICS.items()}


def test_shares_of_the_sample():
    """Of 8 graphs 6 are valid; those are 4 different molecules (CCO, CCN, CCC, CCF), of which all but CCC are new."""
    found = {name: value[0] for name, value in values(both()[0]).items()}
    assert found["validity"] == found["connected"] == 6 / 8
    assert (found["uniqueness"], found["novelty"], found["vun"]) == (4 / 6, 3 / 4, 3 / 8)
    assert (found["validity_fragment"], found["molecule_stability"]) == (1.0, 0.5)
    assert found["atom_stability"] == 24 / 28
    assert found["size"] == 3.5
    assert found["sa"] == 2.0


def test_shares_without_each_row_are_the_naive_ones():
    """Twice a row and once each other moves the linear form by what the share of those n + 1 draws says about this row.

    A row weighs 2n / (n + 1) then and each other one n / (n + 1); the form is linear in the shares without each row.
    """
    table = both()[0]
    is_valid = np.asarray([bool(text) for text in SMILES])
    for name, usable in (("vun", np.ones(len(table), bool)), ("uniqueness", is_valid), ("novelty", is_valid)):
        without = np.asarray([values(table.drop(index=place))[name][0] for place in np.flatnonzero(usable)])
        weights = (np.ones((len(table), len(table))) + np.eye(len(table)))[usable]
        moved = values(table, weights)[name] - values(table)[name][0]
        count = usable.sum()
        expected = (count - 1) / (count + 1) * (without.mean() - without)
        np.testing.assert_allclose(moved, expected, atol=1e-12)


def test_a_share_of_valid_molecules_does_not_vary_with_their_number():
    """Resamples that hold more or fewer valid rows, all alike, say the same."""
    table = add_training(rows([*("C" * n for n in range(1, 21)), *[""] * 20]))
    weights = np.random.default_rng(0).multinomial(40, np.full(40, 1 / 40), size=200).astype(float)
    found = values(table, weights)
    assert set(found["uniqueness"]) == {1.0}
    assert np.std(found["validity"]) > 0.05


def test_distances_are_scipys():
    table, training = both()
    found = {name: value[0] for name, value in values(table).items()}
    valid = table[table["is_valid"] == 1]
    assert found["w1_logp"] == pytest.approx(wasserstein_distance(valid["logp"], training["logp"]), abs=1e-12)
    atoms = [wasserstein_distance(table[name], training[name]) for name in ("atoms_C", "atoms_O")]
    assert found["w1_atoms"] == pytest.approx(np.mean(atoms), abs=1e-12)
    assert found["w1_size"] == pytest.approx(wasserstein_distance(table["n_atoms"], training["n_atoms"]), abs=1e-12)
    weights = np.random.default_rng(1).integers(0, 3, size=(6, len(table))).astype(float)
    repeated = [wasserstein_distance(np.repeat(table["atoms_C"], row.astype(int)), training["atoms_C"]) for row in weights]
    more = [wasserstein_distance(np.repeat(table["atoms_O"], row.astype(int)), training["atoms_O"]) for row in weights]
    np.testing.assert_allclose(values(table, weights)["w1_atoms"], np.mean([repeated, more], axis=0), atol=1e-12)


def test_undefined_is_never_a_number():
    table = add_training(rows(["", ""]))
    found = {name: value[0] for name, value in values(table).items()}
    assert (found["validity"], found["vun"]) == (0.0, 0.0)
    for name in ("uniqueness", "novelty", "qed", "logp", "sa", "w1_atoms", "w1_logp"):
        assert np.isnan(found[name]), name
    assert table["training"].isna().all()
    reasons = {name: metric.reason for name, metric in METRICS.items()}
    assert reasons["w1_logp"] == "needs at least one valid molecule, and rows of the rule training to compare with"
    assert reasons["w1_atoms"] == "needs rows of the rule training to compare with"


def document(**arms):
    params = EvaluationParams(
        task="molecules", split="test", control="supervised", baseline_arm="grpo", headline_rule="policy", chance_rule="start",
        cluster="sample_id", seed=0, resamples=200, max_undefined=0.2, metric_options={"min_uniqueness": 0.7},
    )  # fmt: skip
    tables = {name: pd.concat(parts, ignore_index=True) for name, parts in arms.items()}
    return compare(tables, params, suite=build_suite("molecules", params.metric_options), commit="none")


def test_the_comparison_is_made_and_put_into_words():
    training = rows(["CCC", "CCF", "CCCC", "CO"] * 5, rule="training")
    many = [f"{'C' * n}O" for n in range(1, 31)]
    start = rows([*many[:10], *[""] * 20], rule="start", reward=0.0)
    found = document(
        supervised=[rows([*many[:10], *[""] * 20], reward=0.0), training],
        grpo=[rows([*["CCO"] * 20, *many[:10]], reward=5.0).assign(reward_qed=0.5), start, training],
    )
    grpo = found["arms"]["grpo"]["metrics"]
    assert grpo["validity"]["value"] == 1.0
    assert grpo["uniqueness"]["ci95"][0] < grpo["uniqueness"]["value"] < grpo["uniqueness"]["ci95"][1]
    assert found["differences"]["grpo"]["reward"]["ci95"][0] > 4
    assert "training" not in found["baselines"]
    sentences = " ".join(found["summary"])
    assert "grpo: reward +5.0" in sentences
    assert "grpo: validity +0.667" in sentences
    assert "higher than the model before this training" in sentences
    assert "grpo: WARNING: fewer than 70% of its valid molecules are different" in sentences
    assert "supervised: WARNING" not in sentences


def test_every_metric_has_an_interval_where_it_is_defined():
    training = rows(["CCC", "CO"] * 5, rule="training")
    found = document(supervised=[rows(SMILES * 5), training], grpo=[rows(SMILES * 5), training])
    metrics = found["arms"]["grpo"]["metrics"]
    assert metrics.keys() >= METRICS.keys()
    assert {name for name, entry in metrics.items() if entry["ci95"] is None} == set()


def test_bad_rows_and_options_are_refused():
    with pytest.raises(ValidationError, match="min_uniqueness"):
        build({"min_uniqueness": 2.0})
    with pytest.raises(ValueError, match="none named 'is_known'"):
        document(supervised=[rows().drop(columns="is_known")], grpo=[rows()])
