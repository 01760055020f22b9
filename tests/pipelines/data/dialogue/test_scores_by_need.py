import numpy as np
import pytest
from tiny_replies import evaluation_params, make_examples, make_predictions

from grpo_pipeline.pipelines.data.dialogue.report import scores_by_need
from grpo_pipeline.statistics.bootstrap import cluster_weights
from grpo_pipeline.tasks.dialogue.metrics import build_suite

PARAMS = evaluation_params()


def draw(**arms):
    return scores_by_need(arms, PARAMS, suite=build_suite({})).data


@pytest.fixture(scope="module")
def grpo():
    return make_predictions(skill=0.9)


def test_bars_are_the_means_of_each_need_and_the_start_stands_first(grpo):
    traces = draw(supervised=make_predictions(skill=0.3, seed=4), grpo=grpo)
    assert [(trace.name, trace.showlegend) for trace in traces] == [
        *((name, True) for name in ("start", "supervised", "grpo")),
        *((name, False) for name in ("start", "supervised", "grpo")),
    ]
    means = grpo[grpo["rule"] == "policy"].groupby("needs")[["reward", "f1"]].mean()
    for trace, name in ((traces[2], "reward"), (traces[5], "f1")):
        assert list(trace.x) == ["persona (16)", "story (16)", "none (16)"]
        assert list(trace.y) == pytest.approx([means.loc[need, name] for need in ("persona", "story", "none")])


def test_error_bars_are_the_percentiles_over_resampled_personas(grpo):
    trace = draw(supervised=grpo, grpo=grpo)[5]
    rows = grpo[grpo["rule"] == "policy"].sort_values("example_id").reset_index(drop=True)
    weights = cluster_weights(rows["persona_id"], resamples=50, seed=0)
    is_story = (rows["needs"] == "story").to_numpy()
    means = (weights[:, is_story] @ rows["f1"][is_story]) / weights[:, is_story].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    assert trace.error_y.array[1] == pytest.approx(high - trace.y[1])
    assert trace.error_y.arrayminus[1] == pytest.approx(trace.y[1] - low)


def test_a_need_of_one_persona_has_no_interval():
    examples = make_examples()
    examples["needs"] = np.where(examples["persona_id"] == "p03", "story", "none")
    trace = draw(supervised=make_predictions(examples=examples), grpo=make_predictions(examples=examples))[0]
    assert list(trace.x) == ["story (4)", "none (44)"]
    assert (trace.error_y.array[0], trace.error_y.arrayminus[0]) == (0.0, 0.0)
    assert trace.error_y.array[1] > 0
