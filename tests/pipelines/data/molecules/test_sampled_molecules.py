import numpy as np
import pytest
from sampled_graphs import all_arms, evaluation_params

from grpo_pipeline.pipelines.data.molecules.figures import gather_molecules
from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.tasks.molecules.metrics import build_suite

PARAMS = evaluation_params()


@pytest.fixture(scope="module")
def molecules():
    return gather_molecules(all_arms(), PARAMS, suite=build_suite({}))


def test_the_start_stands_first_and_training_molecules_are_no_samples(molecules):
    assert list(molecules.rows) == ["start", "supervised", "grpo", "eager"]
    assert {len(rows) for rows in molecules.rows.values()} == {48}
    rows = all_arms()["eager"]
    training = rows[rows["rule"] == "training"]
    np.testing.assert_array_equal(molecules.training["logp"], training["logp"])


def test_means_have_the_intervals_of_the_comparison(molecules):
    comparison = compare_arms(PARAMS, "none", **all_arms())
    everyone = np.ones(48, bool)
    for arm in ("supervised", "grpo"):
        entry = comparison["arms"][arm]["metrics"]["validity"]
        valid = molecules.rows[arm]["is_valid"].to_numpy(dtype=float)
        assert molecules.mean(arm, valid, is_in=everyone) == pytest.approx((entry["value"], *entry["ci95"]))


def test_the_mean_of_a_part_leaves_the_others_out(molecules):
    values, is_in = np.r_[np.full(10, 2.0), np.full(38, np.nan)], np.arange(48) < 10
    assert molecules.mean("grpo", values, is_in=is_in) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="one per row of grpo, got 3 for 48"):
        molecules.mean("grpo", values[:3], is_in=is_in[:3])
