"""Rows become arrays by example and sample, whatever their order, and incomplete rows are refused."""

import numpy as np
import pandas as pd
import pytest
from tiny_audit import MODEL, OWNERS, PLAN, STYLE, rows_of, sound

from grpo_pipeline.pipelines.reward_audit.samples import read_samples


def test_arrays_follow_examples_and_samples_in_any_order_of_rows():
    shuffled = sound().sample(frac=1.0, random_state=0)
    samples = read_samples(shuffled, PLAN)
    model = samples.policies["model"]
    np.testing.assert_array_equal(model.components["f1"], MODEL)
    np.testing.assert_allclose(model.reward, MODEL + 0.5 * STYLE, atol=1e-15)
    np.testing.assert_array_equal(model.metrics["quality"], MODEL)
    assert list(model.scored) == ["reward", "f1", "style"]  # what has a weight and is not in the rows is not made up
    assert samples.clusters.tolist() == list(OWNERS)
    assert [name for name, one in samples.policies.items() if one.is_sampled] == ["model"]
    assert list(samples.policies) == list(PLAN.policies)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rows: rows.drop(columns="quality"), r"must have the columns .*got none named \['quality'\]"),
        (lambda rows: rows.assign(reward_new=1.0), r"every reward component must have a weight, got none for \['new'\]"),
        (lambda rows: rows.assign(reward_f1=np.inf), r"must be finite, or NaN where not scored, .*\['reward_f1'\]"),
        (lambda rows: rows[rows["policy"] != "parrot"], "same number of samples of policy parrot, got \\[\\]"),
        (lambda rows: rows.drop(index=rows.index[0]), "same number of samples of policy model, got"),
        (
            lambda rows: pd.concat([rows, rows_of("parrot", np.zeros((4, 1))).assign(name="other")[:1]]),
            "must score the same examples, got 4 of 5 for model",
        ),
    ],
    ids=["column", "weight", "infinite", "policy", "ragged", "examples"],
)
def test_incomplete_rows_are_refused(spoil, message):
    with pytest.raises(ValueError, match=message):
        read_samples(spoil(sound().reset_index(drop=True)), PLAN)
