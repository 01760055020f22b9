"""The audit scores the point rules as the evaluation does, sample by sample."""

import numpy as np
import pandas as pd
import pytest
from tiny_attention import make_data, make_examples, make_task, shake

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.evaluation import audit
from grpo_pipeline.tasks.attention.evaluation.audit import ROLES

ROWS, SETS = np.arange(0, 8), 4


def scored(*, rows=ROWS, data=None, **task):
    task = make_task(**task)
    policy = task.build_policy(0)
    shake(policy, seed=1)
    data = make_data() if data is None else data
    return task.audit(policy, data, rows, seed=3, n_samples=SETS), task.evaluate(policy, data, rows, seed=3, n_samples=SETS), task


def test_means_over_the_samples_are_the_prediction_rows(monkeypatch: pytest.MonkeyPatch):
    """With the evaluation's noise in the place of its own, the audit finds what the evaluation does."""
    same = {"stream": Stream.EVALUATION}
    monkeypatch.setattr(audit, "step_generator", lambda *places, **given: step_generator(*places, **given | same))
    rows, predictions, _ = scored(reward={"heatmap": {"weight": 0.5}})
    names = ["reward", "reward_class", "reward_heatmap", "lesion_hit"]
    means = rows.groupby(["policy", "core_id"])[names].mean()
    expected = predictions.rename(columns={"rule": "policy"}).set_index(["policy", "core_id"]).loc[means.index, names]
    pd.testing.assert_frame_equal(means, expected, rtol=0, atol=1e-6, check_dtype=False)
    assert rows.groupby("policy").size().to_dict() == {
        rule: 8 * (SETS if rule in ("policy", "uniform", "oracle") else 1) for rule in ROLES
    }


def test_the_errors_are_those_of_the_probability_and_of_the_involvement():
    examples = make_examples()
    examples.bag[0] = False
    rows, _, _ = scored(data=AttentionData(examples, None))
    without = rows["core_id"] == "c00"  # no bag in the region, no error of the heatmap
    assert rows["heatmap_error"][without].isna().all()
    assert rows["heatmap_error"][rows["core_id"] == "c02"].notna().all()
    rows = rows[~without]
    table = make_examples().table.set_index("core_id").loc[rows["core_id"]]
    wrong = np.sqrt(rows["brier"].to_numpy())  # |prob - label|: log p(correct class) = log(1 - wrong)
    np.testing.assert_allclose(np.log1p(-wrong), rows["reward_class"], atol=1e-5)
    # reward_heatmap = -BCE(q, y) / 2 with q = y + error or y - error
    y, error = table["involvement"].to_numpy(), rows["heatmap_error"].to_numpy()
    known = ~np.isnan(y)
    assert np.isnan(error[~known]).all()
    assert (rows["core_id"][~known] == "c03").all()
    nll = [-(y * np.log(q) + (1 - y) * np.log1p(-q)) for q in (np.clip(y + s * error, 1e-4, 1 - 1e-4) for s in (1, -1))]
    distance = np.minimum(*(np.abs(-one / 2 - rows["reward_heatmap"].to_numpy()) for one in nll))
    assert distance[known].max() < 1e-5


def test_the_plan_names_what_the_rewards_weigh():
    for weights, model in (({}, {}), ({"points": 0.1, "diversity": 0.2}, {"policy": {"stop": {"min_points": 1}}})):
        rows, _, task = scored(reward={name: {"weight": weight} for name, weight in weights.items()}, **model)
        plan = task.audit_plan
        parts = {name.removeprefix("reward_") for name in rows.columns if name.startswith("reward_")}
        assert parts == {"class", "heatmap"} | set(weights)
        measured = {part: weight for part, weight in plan.weights.items() if part in parts}
        assert measured == {"class": 1.0, "heatmap": 0.0} | weights
        assert plan.start == "policy"


@pytest.mark.parametrize("batch_size", [3, 64])
def test_nothing_depends_on_the_test_split(monkeypatch, batch_size):
    monkeypatch.setattr("grpo_pipeline.tasks.attention.evaluation.point_rules.BATCH_SIZE", batch_size)
    examples = make_examples()
    examples.images[10:] = 255
    examples.lesion[10:] = True
    pd.testing.assert_frame_equal(scored(data=AttentionData(examples, None))[0], scored()[0])
