"""The figures, tables and drawings of the molecule page show the numbers of the prediction rows."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sampled_graphs import all_arms, evaluation_params, reward_params

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.pipelines.evaluation.nodes import compare_arms
from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.tasks.molecules.evaluation.metrics import build_suite
from grpo_pipeline.tasks.molecules.graphs.drawings import best_molecules, draw_grid
from grpo_pipeline.tasks.molecules.pipelines import (
    arm_drawings,
    distributions,
    property_window,
    sampled_molecules,
    validity_by_size,
)

PARAMS, WINDOW, NAMES = evaluation_params(), reward_params().logp, ["start", "supervised", "grpo", "eager"]


def gather(arms=None):
    return sampled_molecules.gather_molecules(arms or all_arms(), PARAMS, suite=build_suite({}))


def rows_of(rule, arm="grpo"):
    rows = all_arms()[arm]
    return rows[rows["rule"] == rule]


def texts(items):
    return [item.get_text() for item in items]


def test_means_have_the_intervals_of_the_comparison_without_training_molecules():
    molecules, comparison = gather(), compare_arms(PARAMS, "none", **all_arms())
    assert list(molecules.rows) == NAMES
    assert {len(rows) for rows in molecules.rows.values()} == {48}
    np.testing.assert_array_equal(molecules.training["logp"], rows_of("training", "eager")["logp"])
    for arm in ("supervised", "grpo"):
        entry, valid = comparison["arms"][arm]["metrics"]["validity"], molecules.rows[arm]["is_valid"].to_numpy(dtype=float)
        assert molecules.mean(arm, valid, is_in=np.ones(48, bool)) == pytest.approx((entry["value"], *entry["ci95"]))
    values, is_in = np.r_[np.full(10, 2.0), np.full(38, np.nan)], np.arange(48) < 10
    assert molecules.mean("grpo", values, is_in=is_in) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="one per row of grpo, got 3 for 48"):
        molecules.mean("grpo", values[:3], is_in=is_in[:3])


def test_distributions_are_those_of_the_rows_and_the_window_is_shaded_and_named():
    """A class that occurs nowhere, here the aromatic bonds, has no place."""
    arms = {arm: rows.assign(bonds_aromatic=0) for arm, rows in all_arms().items()}
    figure = distributions.molecule_distributions(gather(arms), window=WINDOW)
    atoms, bonds, _, logp = figure.axes[:4]
    assert texts(bonds.get_xticklabels()) == ["single", "double", "triple"]
    for place, rule in ((0, "training"), (1, "start"), (3, "policy")):
        means = rows_of(rule)[[f"atoms_{name}" for name in texts(atoms.get_xticklabels())]].mean()
        assert [bar.get_height() for bar in atoms.containers[2 * place + 1]] == pytest.approx(list(means))
    stairs = [patch for patch in logp.patches if hasattr(patch, "get_data")]
    data, valid = stairs[3].get_data(), rows_of("policy").query("is_valid == 1")["logp"]
    np.testing.assert_allclose(data.values, np.histogram(valid, data.edges, density=True)[0])
    assert [(p.get_x(), p.get_x() + p.get_width()) for p in logp.patches if not hasattr(p, "get_data")] == [(0.0, 1.0)]
    assert [line.get_xdata()[0] for line in logp.lines] == [-0.5, 1.5]
    assert texts(figure.legends[0].get_texts()) == ["training", *NAMES, "the reward's window of logP, 0 to 1"]


def test_validity_is_the_share_of_each_size_and_many_sizes_become_groups():
    axes = validity_by_size.validity_by_size(gather()).axes[0]
    shares = rows_of("policy").groupby("n_atoms")["is_valid"].mean()
    line, _, (bars,) = axes.containers[2]
    assert texts(axes.get_xticklabels()) == [str(size) for size in shares.index]
    assert list(line.get_ydata()) == pytest.approx(list(shares))
    assert all(low <= share <= high for ((_, low), (_, high)), share in zip(bars.get_segments(), shares, strict=True))
    groups = validity_by_size.size_groups(np.random.default_rng(0).integers(5, 40, size=5000))
    assert len(groups) == validity_by_size.MOST_SIZES
    assert [size for low, high in groups for size in range(low, high + 1)] == list(range(5, 40))


def test_the_share_in_the_window_and_its_ratio_to_the_start():
    """The ends are inside; a start that never hits leaves the ratio undefined, one that rarely does its upper end."""
    document = property_window.window_document(gather(), name="logp", window=WINDOW, start="start")
    hits = {rule: rows_of(rule)["reward_logp"].to_numpy() for rule in ("policy", "start")}
    assert document["shares"]["grpo"]["value"] == hits["policy"].mean()
    ratio = document["ratios"]["grpo"]
    assert ratio["value"] == pytest.approx(hits["policy"].mean() / hits["start"].mean())
    weights = cluster_weights(rows_of("policy")["sample_id"], resamples=50, seed=0)
    drawn = (weights @ hits["policy"]) / (weights @ hits["start"])
    assert ratio["ci95"] == pytest.approx(np.quantile(drawn, [0.025, 0.975], method="inverted_cdf").tolist())
    assert list(document["ratios"]) == NAMES[1:]
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    arms = {arm: rows.assign(logp=np.where(rows["is_valid"] == 1, 1.0, np.nan)) for arm, rows in all_arms().items()}
    at_the_end = property_window.window_document(gather(arms), name="logp", window=WINDOW, start="start")
    assert at_the_end["shares"]["grpo"]["value"] == rows_of("policy")["is_valid"].mean()
    never = property_window.ratio_entry(np.ones(4), np.zeros(4), resamples=(np.ones(8), np.zeros(8)), clusters=10)
    half = np.r_[np.zeros(4), np.full(4, 0.5)]
    rarely = property_window.ratio_entry(np.ones(4), np.array([1.0, 0, 0, 0]), resamples=(np.ones(8), half), clusters=10)
    few = property_window.ratio_entry(np.ones(4), np.array([1.0, 0, 0, 0]), resamples=(np.ones(8), half), clusters=9)
    assert few == {"value": 4.0, "ci95": None, "reason": "no interval: 9 clusters, fewer than 10"}
    assert property_window.ratio_cell(few).tone == ""
    ratios = {"supervised": never, "grpo": rarely, "eager": rarely | {"ci95": [0.5, 0.9]}}
    cells = [row[2] for row in property_window.window_table(document | {"ratios": ratios}, title="logP").rows]
    assert [(cell.text, cell.note, cell.tone) for cell in cells] == [
        ("", "", ""), ("undefined", "the start never hits the window", ""), ("4.00", "[2.000, ∞]", "better"),
        ("4.00", "[0.500, 0.900]", "worse"),
    ]  # fmt: skip
    without = property_window.window_document(gather(), name="logp", window=None, start="start")
    assert property_window.window_table(without, title="logP") is None


def test_drawings_before_are_of_the_start_and_those_after_of_the_policy():
    """A table in another order gives the same drawing; its panels are the samples that the seed draws."""
    arms, params = all_arms(), evaluation_params(seed=3)
    drawn = arm_drawings.draw_arms(arms, params)
    assert {*drawn} == {f"{arm}_{which}_{when}" for arm in arms for which in ("best", "random") for when in ("before", "after")}
    policy = rows_of("policy")
    assert drawn["grpo_best_after"] == draw_grid(best_molecules(policy, arm_drawings.SHOWN), columns=6)
    assert drawn["grpo_best_before"] == drawn["eager_best_before"] != drawn["grpo_best_after"]
    shuffled = arm_drawings.draw_arms({"grpo": arms["grpo"].sample(frac=1.0, random_state=1)}, params)
    chosen = torch.randperm(48, generator=step_generator(3, stream=Stream.DRAWINGS))[: arm_drawings.SHOWN].tolist()
    expected = draw_grid(policy.set_index("sample_id").loc[[f"s{place:03d}" for place in chosen]], columns=6)
    assert drawn["grpo_random_after"] == shuffled["grpo_random_after"] == expected
    table = pd.DataFrame({"sample_id": [1, 0], "rule": "policy", "smiles": [np.nan, "CC"], "cause": [np.nan, np.nan]})
    assert arm_drawings.rows_of(table, "policy")[["smiles", "cause"]].values.tolist() == [["CC", ""], ["", ""]]
