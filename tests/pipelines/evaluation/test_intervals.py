"""Every interval of every metric of every task holds its own value and stays in the metric's range."""

import itertools

import numpy as np
import pandas as pd
import pytest
import tiny_replies
from scipy.special import expit
from scipy.stats import t as student

from grpo_pipeline.pipelines.evaluation.comparison import estimate
from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.statistics import linear_resampling, weighted
from grpo_pipeline.statistics.bootstrap import Estimate, cluster_weights, describe, paired_difference
from grpo_pipeline.statistics.metric import Metric
from grpo_pipeline.statistics.over_seeds import describe_seeds, over_seeds
from grpo_pipeline.statistics.seed_interval import mean_of_seeds
from grpo_pipeline.tasks.attention.evaluation.class_metrics import class_metrics, finding_metrics
from grpo_pipeline.tasks.attention.evaluation.mask_metrics import mask_metrics
from grpo_pipeline.tasks.attention.evaluation.reader_metrics import reader_metrics
from grpo_pipeline.tasks.molecules.evaluation.metrics import add_training

FACTS = {"outlined_share"}  # no sample of cores


def attention_rows(predictions, *, seed: int) -> dict[str, pd.DataFrame]:
    """Return the rows of two policies with a reader's score, masks, classes and findings."""
    tables = {}
    for name, skill in (("own", 1.0), ("other", 0.0)):
        rows = predictions(seed=seed, skill=skill)
        rows = rows[rows["rule"] == "policy"].reset_index(drop=True)
        rng, n = np.random.default_rng(seed), len(rows)
        probs = rng.dirichlet(np.ones(3), n)
        more = {f"prob_{name}": probs[:, place] for place, name in enumerate(("benign", "mass", "cyst"))}
        more |= {"reader_score": rng.integers(0, 5, n) + rows["label"], "dice": rng.random(n), "iou": rng.random(n) / 2}
        more |= {"class": rng.integers(0, 3, n), "findings": rng.integers(0, 8, n), "prob_shift": rng.random(n) / 9}
        more |= {"heatmap_top": rng.random(n), "pointing_hit": rng.integers(0, 2, n), "outlined_share": 0.1}
        more |= {"lesion_distance_mm": rng.gamma(2.0, 2.0, n), "hausdorff95_px": rng.gamma(2.0, 9.0, n)}
        more |= {"hausdorff95_mm": rng.gamma(2.0, 3.0, n), "clicks_to_80": 1 + rng.integers(0, 4, n), "clicks_to_90": 4.0}
        tables[name] = rows.assign(**more)
    return tables


def dialogue_rows(*, seed: int) -> dict[str, pd.DataFrame]:
    """Return the rows of two policies: the replies of twelve personas, and the same drawn anew."""
    table = tiny_replies.make_predictions()
    own = table[table["rule"] == "policy"]
    copies = [own.assign(example_id=own["example_id"] + f"-{n}", subject_id=own["subject_id"] + f"-{n}") for n in range(6)]
    many = pd.concat(copies, ignore_index=True)
    return {"own": many, "other": many.assign(reply=many["reply"].sample(frac=1, random_state=seed).to_numpy())}


def molecule_rows(*, seed: int) -> dict[str, pd.DataFrame]:
    """Return the rows of two policies beside training molecules that they resemble."""

    def drawn(rule: str, rng: np.random.Generator, n: int) -> pd.DataFrame:
        smiles = np.array(["C" * k + "O" for k in rng.integers(1, 40, n)])
        valid = (rng.random(n) < 0.8) | (rule == "training")
        found = {name: rng.integers(0, 4, n).astype(float) for name in ("atoms_C", "bonds_single", "valency_4", "stable_atoms")}
        found |= {name: rng.integers(0, 2, n) for name in ("is_connected", "sanitises", "fragment_is_valid", "is_stable")}
        known = np.where(valid, rng.integers(0, 2, n), np.nan)
        found |= {
            "is_known": known,
            "qed": np.where(valid, rng.random(n), np.nan),
            "logp": np.where(valid, rng.normal(size=n), np.nan),
        }
        found |= {
            "sa": np.where(valid, rng.uniform(1, 10, n), np.nan),
            "reward": rng.normal(size=n),
            "n_atoms": rng.integers(4, 9, n),
        }
        names = {"sample_id": [f"s{i}" for i in range(n)], "prompt_id": [f"p{i // 2}" for i in range(n)], "rule": rule}
        return pd.DataFrame(names | {"smiles": np.where(valid, smiles, ""), "is_valid": valid.astype(int)} | found)

    tables = {}
    for name, rng in (("own", np.random.default_rng(seed)), ("other", np.random.default_rng(seed + 99))):
        both = pd.concat([drawn("policy", rng, 120), drawn("training", np.random.default_rng(5), 400)], ignore_index=True)
        tables[name] = add_training(both)
    return tables


def metrics_of(task: str) -> dict[str, Metric]:
    found = dict(build_suite(task, {}).metrics)
    if task == "attention":
        names = ("benign", "mass", "cyst")
        found |= reader_metrics() | mask_metrics() | finding_metrics(names) | class_metrics(names, ordinal=True)
    return found


@pytest.mark.parametrize("task", ["attention", "dialogue", "molecules"])
def test_every_interval_holds_its_value_in_its_middle_and_stays_in_range(task, predictions) -> None:
    """Values, differences and means over three seeds; resamples are not moved to one side by more than half their spread."""
    cluster = {"attention": "patient_id", "dialogue": "subject_id", "molecules": "sample_id"}[task]
    seeds: dict[str, dict[str, dict[int, Estimate]]] = {}
    for seed in range(3):
        tables = attention_rows(predictions, seed=seed) if task == "attention" else (
            dialogue_rows(seed=seed) if task == "dialogue" else molecule_rows(seed=seed)
        )  # fmt: skip
        weights = cluster_weights(tables["own"][cluster], resamples=200, seed=seed)
        for (side, rows), (name, metric) in itertools.product(tables.items(), metrics_of(task).items()):
            found = estimate(metric, rows, weights, cluster=cluster)
            seeds.setdefault(name, {}).setdefault(side, {})[seed] = found
    seen = 0
    for name, sides in seeds.items():
        gaps = {seed: paired_difference(one, sides["other"][seed]) for seed, one in sides["own"].items()}
        for by_seed, (low, high) in ((sides["own"], metrics_of(task)[name].bounds), (gaps, gaps[0].bounds)):
            entries = [describe(by_seed[0]), describe_seeds(by_seed, resamples=200)]
            for entry in entries:
                if entry["ci95"] is not None:
                    assert low <= entry["ci95"][0] <= entry["value"] <= entry["ci95"][1] <= high, (name, entry)
                    seen += 1
        moved = sides["own"][0].defined.mean() - sides["own"][0].value
        if sides["own"][0].varies:
            assert abs(moved) < 0.5 * sides["own"][0].defined.std(), (name, moved, sides["own"][0].defined.std())
    assert seen > 2 * len(seeds)
    unbounded = {name for name, metric in metrics_of(task).items() if not np.isfinite(metric.bounds).any()}
    assert {name for name in unbounded if not name.startswith("reward")} <= FACTS | {"logp"}


def test_a_calibration_error_keeps_its_middle_where_a_resample_adds_noise() -> None:
    """A calibrated model: all of its error is noise, and a resample has more of it than the sample, nearly always."""
    rng = np.random.default_rng(0)
    held, above = 0, 0
    for _ in range(20):
        rows = pd.DataFrame({"prob": rng.random(316), "core_id": [f"c{i}" for i in range(316)]})
        rows["label"] = (rng.random(316) < rows["prob"]).astype(float)
        weights = cluster_weights(rows["core_id"], resamples=200, seed=0)
        ece = metrics_of("attention")["ece"]
        found = estimate(ece, rows, weights, cluster="core_id")
        low, high = np.quantile(found.resamples, [0.025, 0.975])
        held += low < found.value < high
        plain = weighted.calibration_error(rows["prob"].to_numpy(), rows["label"].to_numpy() == 1, weights, bins=10)
        above += plain.mean() > found.value + plain.std() / 2
    assert (held, above) == (20, 20)


def test_the_leaving_out_of_rows_of_one_kind_is_that_of_a_loop_in_blocks_of_any_size(monkeypatch) -> None:
    values = np.array([0.1, 0.7, 0.1, 0.4, 0.7])

    def statistic(weights: np.ndarray) -> np.ndarray:
        return np.abs(weighted.mean(values, weights) - 0.3)

    whole = abs(values.mean() - 0.3)
    without = np.array([abs(np.delete(values, place).mean() - 0.3) for place in range(5)])
    weights = np.array([[1.0, 1, 1, 1, 1], [2, 0, 1, 1, 1], [0, 0, 0, 3, 0]])
    shares = weights * 5 / weights.sum(axis=1, keepdims=True) - 1
    expected = np.clip(whole - 4 / 5 * shares @ (without - whole), 0, None)
    for block in (1, 7, 1 << 22):
        monkeypatch.setattr(linear_resampling, "BLOCK", block)
        np.testing.assert_allclose(linear_resampling.linear(statistic, values, weights), expected, rtol=1e-12)
    assert expected[1] != whole


def test_the_interval_over_seeds_is_taken_on_the_logit_between_two_bounds() -> None:
    # The AUROC of patients that read 0.980 [0.956, 1.004]: s^2 / 3 + B = 1e-4 / 3 + 6e-5, df from both, slope 1 / (0.98 * 0.02).
    values, cluster_variance = [0.97, 0.98, 0.99], 6e-5
    variance = 1e-4 / 3 + cluster_variance
    degrees = variance**2 / ((1e-4 / 3) ** 2 / 2 + cluster_variance**2 / 29)
    reach = student.ppf(0.975, degrees) * np.sqrt(variance)
    plain = over_seeds(values, cluster_variance=cluster_variance, clusters=30)["ci95"]
    assert plain == pytest.approx([0.98 - reach, 0.98 + reach])
    assert plain[1] > 1
    found = over_seeds(values, cluster_variance=cluster_variance, clusters=30, bounds=(0.0, 1.0))["ci95"]
    middle, wide = np.log(0.98 / 0.02), reach / (0.98 * 0.02)
    assert found == pytest.approx([expit(middle - wide), expit(middle + wide)])
    # With one bound it is cut there; two seeds that lie apart say nothing; all alike are the exact bound.
    assert over_seeds([0.1, 0.2, 0.9], cluster_variance=0.0, clusters=30, bounds=(0.0, np.inf))["ci95"][0] == 0.0
    two = over_seeds([0.2, 0.9], cluster_variance=1e-4, clusters=30, bounds=(0.0, 1.0))
    assert (two["ci95"], two["reason"]) == (None, "no interval: too few seeds, 2 that differ by more than the clusters explain")
    alike = over_seeds([1.0, 1.0, 1.0], cluster_variance=0.0, clusters=30, bounds=(0.0, 1.0))
    assert alike["ci95"] == pytest.approx([0.025 ** (1 / 30), 1.0])


@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (-1.0, 1.0), (-0.5, np.inf)])
@pytest.mark.parametrize("values", [[0.1, 0.12, 0.2], [0.3, 0.1, 0.5], [0.02, -0.01, 0.05], [-0.4, -0.1, -0.2]])
def test_the_p_value_of_seeds_is_the_level_at_which_the_interval_touches_0(values, bounds) -> None:
    told = mean_of_seeds(values, cluster_variance=1e-4, clusters=30, bounds=bounds)
    assert told is not None
    low, high = told.interval(1 - told.p_value())
    assert min(abs(low), abs(high)) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("truth", [0.9, 0.97])
def test_the_interval_over_seeds_near_its_bound_holds_the_truth_as_often_as_it_says(truth: float) -> None:
    """Three seeds whose values are shares near 1, by their own luck alone: beta values around the truth."""
    rng, held, trials = np.random.default_rng(3), 0, 2000
    for _ in range(trials):
        values = rng.beta(60 * truth, 60 * (1 - truth), 3)
        low, high = over_seeds(values.tolist(), cluster_variance=0.0, clusters=40, bounds=(0.0, 1.0))["ci95"]
        assert 0 <= low <= high <= 1
        held += low <= truth <= high
    assert held / trials >= 0.92  # 95 is wanted; a proportion of 2000 draws has a standard error of 0.005
