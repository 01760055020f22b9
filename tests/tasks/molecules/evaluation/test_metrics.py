import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from scipy.stats import wasserstein_distance

from grpo_pipeline.pipelines.evaluation.comparison import compare
from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.tasks.molecules.evaluation.metrics import METRICS, add_training
from grpo_pipeline.tasks.molecules.evaluation.metrics import build_suite as build
from grpo_pipeline.tasks.molecules.evaluation.summary import difference_sentence, summary

SMILES = ["CCO", "CCO", "CCN", "", "CCC", "", "CCF", "CCN"]
KNOWN = {"CCC"}


def rows(smiles=SMILES, *, rule="policy", reward=1.0, shift=0.0):
    valid, places, generator = np.array([bool(text) for text in smiles]), np.arange(len(smiles)), np.random.default_rng(0)
    known, qed = [float(text in KNOWN) for text in smiles], generator.random(len(smiles))
    where_valid = {"is_known": known, "qed": qed, "logp": generator.normal(size=len(smiles)) + shift, "sa": 2.0}
    drawn = {"reward": reward + generator.random(len(smiles))}
    drawn |= {name: generator.integers(*ends, len(smiles)) for name, ends in
              {"atoms_C": (1, 5), "atoms_O": (0, 3), "valency_4": (0, 2)}.items()}  # fmt: skip
    columns = {
        "sample_id": [f"s{place}" for place in places], "prompt_id": [f"p{place // 2}" for place in places], "rule": rule,
        "smiles": smiles, "is_valid": valid.astype(int), "is_connected": valid.astype(int), "sanitises": 1,
        "fragment_is_valid": 1, "stable_atoms": 3, "bonds_single": 2, "n_atoms": 3 + places % 2,
        "is_stable": (places % 2 == 0).astype(int),
    }  # fmt: skip
    return pd.DataFrame(columns | {name: np.where(valid, values, np.nan) for name, values in where_valid.items()} | drawn)


def both():
    training = rows(["CCC", "CCF", "CCCC", "CO"], rule="training", shift=0.5)
    return add_training(pd.concat([rows(), training], ignore_index=True)), training


def values(table, weights=None):
    weights = np.ones((1, len(table))) if weights is None else weights
    return {name: metric(table, weights) for name, metric in METRICS.items()}


def test_shares_of_the_sample():
    """Of 8 graphs 6 are valid; those are 4 different molecules (CCO, CCN, CCC, CCF), of which all but CCC are new."""
    found = {name: value[0] for name, value in values(both()[0]).items()}
    expected = {
        "validity": 6 / 8, "connected": 6 / 8, "uniqueness": 4 / 6, "novelty": 3 / 4, "vun": 3 / 8, "sa": 2.0, "size": 3.5,
        "validity_fragment": 1.0, "molecule_stability": 0.5, "atom_stability": 24 / 28,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


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


def test_training_molecules_without_a_number_are_left_out_of_what_is_compared_with():
    training = rows(["CCC", "", "CCCC", ""], rule="training")  # two of them are not valid: qed, logp and sa are unknown
    reference = add_training(pd.concat([rows(), training], ignore_index=True))["training"].iloc[0]
    assert reference["qed"].tolist() == training["qed"].dropna().tolist()
    assert len(reference["qed"]) == 2
    assert len(reference["n_atoms"]) == 4


def test_the_share_of_stable_atoms_rests_on_all_atoms():
    table = both()[0]
    weights = np.random.default_rng(0).integers(0, 3, (4, len(table))).astype(float)
    np.testing.assert_allclose(METRICS["atom_stability"].mass(table, weights), weights @ table["n_atoms"].to_numpy())


def test_distances_are_scipys():
    table, training = both()
    found = {name: value[0] for name, value in values(table).items()}
    valid = table[table["is_valid"] == 1]
    assert found["w1_logp"] == pytest.approx(wasserstein_distance(valid["logp"], training["logp"]), abs=1e-12)
    assert found["w1_size"] == pytest.approx(wasserstein_distance(table["n_atoms"], training["n_atoms"]), abs=1e-12)
    # A resample varies by the distances without each row: D - (n - 1) / n * sum_i (w_i n / sum w - 1) (D_(-i) - D), at least 0.
    weights = np.random.default_rng(1).integers(0, 3, size=(6, len(table)))

    def of_both(rest):
        return np.mean([wasserstein_distance(rest[name], training[name]) for name in ("atoms_C", "atoms_O")])

    moved = np.array([of_both(table.drop(index=place)) - of_both(table) for place in table.index])
    count = len(table)
    shares = weights * count / weights.sum(axis=1, keepdims=True) - 1
    expected = of_both(table) - (count - 1) / count * shares @ moved
    assert expected.min() > 0
    np.testing.assert_allclose(values(table, weights.astype(float))["w1_atoms"], expected, atol=1e-12)


def test_undefined_is_never_a_number():
    table = add_training(rows(["", ""]))
    found = {name: value[0] for name, value in values(table).items()}
    assert (found["validity"], found["vun"]) == (0.0, 0.0)
    assert {name for name, value in found.items() if np.isnan(value)} >= {"uniqueness", "novelty", "qed", "logp", "sa", "w1_logp"}
    assert np.isnan(found["w1_atoms"])
    assert table["training"].isna().all()
    assert METRICS["w1_atoms"].reason == "needs rows of the rule training to compare with"
    assert METRICS["w1_logp"].reason == "needs at least one valid molecule, and rows of the rule training to compare with"
    with pytest.raises(ValidationError, match="min_uniqueness"):
        build({"min_uniqueness": 2.0})


def document(**arms):
    params = EvaluationParams(
        task="molecules", split="test", control="supervised", baseline_arm="grpo", headline_rule="policy", chance_rule="start",
        cluster="sample_id", seed=0, resamples=200, metric_options={"min_uniqueness": 0.7},
    )  # fmt: skip
    tables = {name: pd.concat(parts, ignore_index=True) for name, parts in arms.items()}
    return compare(tables, params, suite=build_suite("molecules", params.metric_options), commit="none")


def test_the_comparison_is_made_and_put_into_words():
    training, many = rows(["CCC", "CCF", "CCCC", "CO"] * 5, rule="training"), [f"{'C' * n}O" for n in range(1, 31)]
    few = [*many[:10], *[""] * 20]
    start = rows(few, rule="start", reward=0.0)
    found = document(
        supervised=[rows(few, reward=0.0), training],
        grpo=[rows([*["CCO"] * 20, *many[:10]], reward=5.0).assign(reward_qed=0.5), start, training],
    )
    grpo = found["arms"]["grpo"]["metrics"]
    assert grpo["validity"]["value"] == 1.0
    assert {name for name, entry in grpo.items() if entry["ci95"] is None} == set()
    # What is the same in every graph, and has no two bounds.
    constant = {name for name, entry in grpo.items() if entry.get("note", "").endswith("nothing bounds it")}
    assert constant == {"reward_qed", "w1_sa", "w1_size", "w1_bonds"}
    assert grpo["validity"]["ci95"] == [pytest.approx(0.025 ** (1 / 30)), 1.0]  # 30 of 30 graphs are valid
    assert grpo["uniqueness"]["ci95"][0] < grpo["uniqueness"]["value"] < grpo["uniqueness"]["ci95"][1]
    assert found["differences"]["grpo"]["reward"]["ci95"][0] > 4
    assert "training" not in found["baselines"]
    sentences = " ".join(found["summary"])
    for said in ("reward +5.0", "validity +0.667", "WARNING: fewer than 70% of its valid molecules are different"):
        assert f"grpo: {said}" in sentences
    assert "higher than the model before this training" in sentences
    assert "supervised: WARNING" not in sentences
    same = {"value": 0.0, "ci95": [-0.1, 0.1]}
    assert difference_sentence("grpo", same, what="validity", than="supervised").startswith(
        "grpo: validity against supervised +0"
    )
    # The bar: V.U.N. above the start's and the control's. The valid and different ones of grpo are as many, 10 of 30.
    bar = found["bar"]["grpo"]["vun"]
    assert {one["than"]: one["value"] for one in bar["conditions"].values()} == {"start": 0.0, "supervised": 0.0}
    assert bar["verdict"] == "not shown"
    assert "grpo: did learning from reward work, by Valid, unique and novel (V.U.N.)? Not shown." in sentences
    better = document(supervised=[rows(few, reward=0.0), training], grpo=[rows(many, reward=5.0), start, training])
    conditions = better["bar"]["grpo"]["vun"]["conditions"].values()
    assert [one["value"] for one in conditions] == pytest.approx([20 / 30, 20 / 30])
    assert better["bar"]["grpo"]["vun"]["verdict"] == "met"
    with pytest.raises(ValueError, match="none named 'is_known'"):
        document(supervised=[rows().drop(columns="is_known")], grpo=[rows()])


def told(value, ends=None, **more):
    return {"value": value, "ci95": ends, **more}


def test_what_is_said_of_each_arm_against_the_control_and_its_own_start():
    """Three quantities each; the control is not held against itself; what is not known is said with its reason."""
    up, at, none = told(0.4, [0.1, 0.7]), told(0.0, [-0.1, 0.1]), told(None, reason="too few")
    known = {"uniqueness": told(0.5), "novelty": told(0.25)}
    document = {
        "control": "trawl",
        "arms": {
            "trawl": {"metrics": known},
            "line": {"metrics": {"uniqueness": told(0.75), "novelty": told(None, reason="none is valid")}},
            "net": {"metrics": {"uniqueness": told(None, reason="nothing drawn"), "novelty": told(0.5)}},
        },
        "differences": {
            "line": {"reward": up, "validity": at, "vun": none},
            "net": {"reward": at, "validity": told(-0.4, [-0.7, -0.1]), "vun": up},
        },
        "policy_gain": {"line": {"reward": at, "validity": up, "vun": told(-0.4, [-0.7, -0.1])}},
    }
    trawl, *others = summary(document, min_uniqueness=0.5)
    assert trawl == "trawl: of its valid molecules 50.0% are different ones; of those, 25.0% are not in the training set."
    assert [sentence.partition(":")[0] for sentence in others] == ["line"] * 7 + ["net"] * 4
    assert others[0].startswith("line: reward +0.400")
    assert "higher than trawl" in others[0]
    assert others[1].startswith("line: validity against trawl +0.000")
    assert others[2] == "line: share of valid, unique and novel molecules against trawl: no statement (too few)."
    start = "the model before this training"
    assert others[3].startswith(f"line: reward against {start} +0.000")
    assert f"higher than {start}" in others[4]
    assert f"lower than {start}" in others[5]
    assert others[6] == "line: uniqueness and novelty: no statement (none is valid)."
    assert "lower than trawl" in others[8]
    assert others[10] == "net: uniqueness and novelty: no statement (nothing drawn)."
    # Exactly at the least share there is no warning; above it there is, of the control, too.
    warned = summary(document, min_uniqueness=0.51)
    assert len(warned) == 13
    assert warned[1].startswith("trawl: WARNING: fewer than 51% of its valid molecules are different")
