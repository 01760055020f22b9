import numpy as np
import pytest
from matplotlib.colors import to_hex
from sampled_graphs import all_arms, evaluation_params, reward_params

from grpo_pipeline.pipelines.data.molecules.figures import gather_molecules, molecule_distributions
from grpo_pipeline.tasks.molecules.metrics import build_suite


def gather(arms):
    return gather_molecules(arms, evaluation_params(), suite=build_suite({}))


@pytest.fixture(scope="module")
def figure():
    arms = {arm: rows.assign(bonds_aromatic=0) for arm, rows in all_arms().items()}
    return molecule_distributions(gather(arms), window=reward_params().logp)


def test_bars_are_mean_numbers_and_training_stands_first(figure):
    """A class that occurs nowhere, here the aromatic bonds, has no place."""
    atoms, bonds, valency = figure.axes[:3]
    assert [tick.get_text() for tick in atoms.get_xticklabels()] == ["C", "N", "O", "F"]
    assert [tick.get_text() for tick in bonds.get_xticklabels()] == ["single", "double", "triple"]
    assert {"1", "2", "3", "4"} <= {tick.get_text() for tick in valency.get_xticklabels()}
    rows = all_arms()["grpo"]
    for place, rule in ((0, "training"), (1, "start"), (3, "policy")):
        means = rows.loc[rows["rule"] == rule, ["atoms_C", "atoms_N", "atoms_O", "atoms_F"]].mean()
        assert [bar.get_height() for bar in atoms.containers[2 * place + 1]] == pytest.approx(list(means))


def test_densities_are_those_of_valid_molecules(figure):
    rows = all_arms()["grpo"]
    valid = rows[(rows["rule"] == "policy") & (rows["is_valid"] == 1)]
    stairs = [patch for patch in figure.axes[3].patches if hasattr(patch, "get_data")]
    colours = [to_hex(patch.get_facecolor() if patch.get_fill() else patch.get_edgecolor()) for patch in stairs]
    assert colours[:2] == ["#222222", "#999999"]
    data = stairs[3].get_data()
    np.testing.assert_allclose(data.values, np.histogram(valid["logp"], data.edges, density=True)[0])
    for patch in stairs:
        assert (patch.get_data().values * np.diff(patch.get_data().edges)).sum() == pytest.approx(1.0)


def test_the_window_of_the_reward_is_shaded_and_named(figure):
    spans = [patch for patch in figure.axes[3].patches if not hasattr(patch, "get_data")]
    assert [(span.get_x(), span.get_x() + span.get_width()) for span in spans] == [(0.0, 1.0)]
    assert [line.get_xdata()[0] for line in figure.axes[3].lines] == [-0.5, 1.5]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["training", "start", "supervised", "grpo", "eager", "the reward's window of logP, 0 to 1"]
    without = molecule_distributions(gather(all_arms()), window=None)
    assert not without.axes[3].lines
    assert len(without.legends[0].get_texts()) == 5


def test_without_a_valid_molecule_and_without_training_there_is_no_line():
    broken = {"supervised": all_arms()["supervised"], "grpo": all_arms()["grpo"]}
    columns = {"smiles": "", "is_valid": 0, "qed": np.nan, "logp": np.nan, "sa": np.nan, "is_known": np.nan}
    broken = {arm: rows[rows["rule"] != "training"].assign(**columns) for arm, rows in broken.items()}
    figure = molecule_distributions(gather(broken), window=None)
    assert not figure.axes[3].patches
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["start", "supervised", "grpo"]
