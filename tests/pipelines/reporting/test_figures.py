import numpy as np
import pandas as pd
import pytest

from grpo_pipeline.pipelines.reporting.figures import colour_of
from grpo_pipeline.pipelines.reporting.learning_curves import POINTS, learning_curves, smooth, thin

TITLES = {
    "Reward", "Supervised loss", "Policy entropy (nats)", "KL to the reference (nats)",
    "Mean probability ratio", "Gradient norm, supervised", "Gradient norm, RL",
}  # fmt: skip


COLOURS = {"supervised": "#0072B2", "grpo": "#D55E00"}


def test_learning_curves_overlay_both_arms_in_a_panel_per_metric(metric_rows):
    rows = {"supervised": metric_rows(seed=1), "grpo": metric_rows(seed=2)}
    panels = learning_curves(rows, colours=COLOURS)
    assert next(iter(panels)) == "00_reward_mean.svg"
    assert {figure.axes[0].get_title(loc="left") for figure in panels.values()} == TITLES
    assert {figure.axes[0].get_xlabel() for figure in panels.values()} == {"training step"}
    drawn = {line.get_gid(): line for line in panels["00_reward_mean.svg"].axes[0].lines}
    kinds = ("raw", "smoothed", "val")
    assert {*drawn} == {f"{arm} {kind}" for arm in rows for kind in kinds}
    for arm, colour in COLOURS.items():
        assert {drawn[f"{arm} {kind}"].get_color() for kind in kinds} == {colour}
    train, val = (rows["grpo"][rows["grpo"]["split"] == split] for split in ("train", "val"))
    for kind, part in (("raw", train), ("val", val)):
        np.testing.assert_allclose(drawn[f"grpo {kind}"].get_ydata(), part["reward/mean"].dropna())
        np.testing.assert_array_equal(drawn[f"grpo {kind}"].get_xdata(), part.dropna(subset=["reward/mean"])["step"])
    raw, smoothed = (drawn[f"grpo {kind}"].get_ydata() for kind in ("raw", "smoothed"))
    assert np.diff(smoothed).std() < 0.3 * np.diff(raw).std()


def test_metrics_of_the_task_follow_the_reward_and_unmeasured_ones_have_no_panel(metric_rows):
    rows = {"grpo": metric_rows(seed=1)[["step", "split", "reward/mean", "grad_norm/rl"]].assign(**{"reply/tokens": 7.0})}
    named = {"reply/tokens": "Tokens in a reply", "reply/never": "Never"}
    panels = learning_curves(rows, named | {"reward/mean": "Reward, told"}, colours=COLOURS)
    titles = {name: figure.axes[0].get_title(loc="left") for name, figure in panels.items()}
    assert titles == {
        "00_reward_mean.svg": "Reward, told", "01_reply_tokens.svg": "Tokens in a reply",
        "02_grad_norm_rl.svg": "Gradient norm, RL",
    }  # fmt: skip
    assert learning_curves({"grpo": rows["grpo"][["step", "split"]]}, colours=COLOURS) == {}


def test_an_arm_has_the_same_colour_whatever_stands_beside_it():
    two = colour_of(["supervised", "grpo"], control="supervised", shown="grpo")
    many = colour_of(["nothing", "supervised", "prior", "grpo"], control="supervised", shown="grpo")
    assert two == COLOURS == {arm: many[arm] for arm in two}
    assert len(set(many.values())) == 4
    assert colour_of(["grpo"], control="grpo", shown="grpo") == {"grpo": COLOURS["supervised"]}


@pytest.mark.parametrize("length", [1, POINTS, POINTS + 1, 7 * POINTS + 3])
def test_smoothing_follows_a_step_and_thinning_keeps_the_last_value_and_the_order(length):
    kept = thin(pd.Series(range(length)))
    assert len(kept) <= POINTS
    assert kept.iloc[-1] == length - 1
    assert kept.is_monotonic_increasing
    np.testing.assert_allclose(smooth(pd.Series([2.0] * 90)), 2.0)
    # span 60 / 15 = 4 -> factor 2 / 5: the second of two values weighs 1 against 3 / 5 -> 1 / 1.6
    assert smooth(pd.Series([0.0, 1.0] + [1.0] * 58)).iloc[1] == pytest.approx(0.625)
