"""The figure and the table of the dialogue page show the numbers of the prediction rows."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import BarContainer
from tiny_replies import evaluation_params, make_examples, make_predictions

from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.tasks.dialogue.evaluation.metrics import build_suite
from grpo_pipeline.tasks.dialogue.pipelines.reply_groups import reply_groups
from grpo_pipeline.tasks.dialogue.pipelines.scores_by_need import scores_by_need


def rollouts(replies, rewards, advantages, *, example="e1"):
    rewards = np.asarray(rewards, dtype=float)
    said = {"example_id": example, "needs": "story", "question": "persona: <b>i bake</b>. context: hi", "answer": "a ring"}
    drawn = {"sample": range(len(replies)), "reply": replies, "reward_f1": rewards / 2, "reward_brevity": rewards / 2}
    return pd.DataFrame(drawn | {"reward": rewards, "advantage": advantages}).assign(**said)


def test_replies_stand_by_falling_reward_with_their_parts_and_what_they_teach():
    """Equal replies are one row with their number; an empty one and a reward that failed are named."""
    replies, rewards = ["a bell", "a ring", np.nan, "nothing", "a ring"], [0.5, 2.0, np.nan, 0.1, 2.0]
    (group,) = reply_groups(rollouts(replies, rewards, [-0.3, 1.2, 0.0, 0.0, 1.2]), limit=3)
    assert group.replies.heads == ["reply", "times", "f1", "brevity", "reward", "advantage"]
    assert [[cell.text for cell in row] for row in group.replies.rows] == [
        ["a ring", "2", "1.000", "1.000", "2.000", "+1.20"],
        ["a bell", "1", "0.250", "0.250", "0.500", "-0.30"],
        ["nothing", "1", "0.050", "0.050", "0.100", "+0.00"],
        ["(nothing)", "1", *["not measured"] * 3, "+0.00"],
    ]
    assert [row[-1].tone for row in group.replies.rows] == ["better", "worse", "", ""]
    assert "the right reply is “a ring”" in group.replies.caption
    assert (group.needs, group.question) == ("story", "persona: <b>i bake</b>. context: hi")
    table = pd.concat([rollouts(["x"], [1.0], [0.0], example=name) for name in ("b", "a", "c")])
    assert [group.replies.caption[:1] for group in reply_groups(table, limit=2)] == ["b", "a"]


def test_bars_are_the_means_of_each_need_with_percentiles_over_resampled_personas():
    """The start stands first; a need of one persona has no interval."""
    grpo, params = make_predictions(skill=0.9), evaluation_params()
    arms = {"supervised": make_predictions(skill=0.3, seed=4), "grpo": grpo}
    panels = scores_by_need(arms, params, suite=build_suite({}))
    assert [*panels] == ["0_reward.svg", "1_f1.svg"]
    rows = grpo[grpo["rule"] == "policy"].sort_values("example_id").reset_index(drop=True)
    weights = cluster_weights(rows["subject_id"], resamples=50, seed=0)
    for figure, name in zip(panels.values(), ("reward", "f1"), strict=True):
        axes = figure.axes[0]
        bars = [one for one in axes.containers if isinstance(one, BarContainer)]
        assert [one.get_label() for one in bars] == ["start", "supervised", "grpo"]
        assert [text.get_text() for text in axes.get_xticklabels()] == ["persona (16)", "story (16)", "none (16)"]
        for place, need in enumerate(("persona", "story", "none")):
            is_in = (rows["needs"] == need).to_numpy()
            low, high = np.quantile((weights[:, is_in] @ rows[name][is_in]) / weights[:, is_in].sum(1), [0.025, 0.975])
            assert bars[2].patches[place].get_height() == pytest.approx(rows[name][is_in].mean())
            assert ends(bars[2], place) == pytest.approx((low, high))
    examples = make_examples()
    examples["needs"] = np.where(examples["subject_id"] == "p03", "story", "none")
    panels = scores_by_need({arm: make_predictions(examples=examples) for arm in arms}, params, suite=build_suite({}))
    axes = panels["0_reward.svg"].axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["story (4)", "none (44)"]
    start = next(one for one in axes.containers if isinstance(one, BarContainer))
    low, high = ends(start, 0)
    assert low == pytest.approx(start.patches[0].get_height()) == pytest.approx(high)
    low, high = ends(start, 1)
    assert low < start.patches[1].get_height() < high


def ends(bars, place):
    """Return the lower and the upper end of a bar's interval."""
    return tuple(bars.errorbar.lines[2][0].get_segments()[place][:, 1])
