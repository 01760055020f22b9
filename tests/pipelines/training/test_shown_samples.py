import numpy as np
import pandas as pd
import pytest
from tiny_talk import algorithm_params, make_data, make_task, training_params

from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.training.nodes import predict, shown_samples
from grpo_pipeline.tasks.dialogue.scores import f1

# An untrained language model earns no overlap: a reward that differs between any two replies.
TASK = make_task(rewards={"own": {"scripted": {"function": "tiny_rewards:scripted", "weight": 1.0}}})
DATA = make_data(TASK)
ROWS = np.array([10, 11, 12])
EPSILON = 1e-4  # added to the standard deviation of a group


def shown(arm="grpo", **changes):
    algorithm = algorithm_params(arm, **changes)
    return shown_samples(TASK, TASK.build_policy(0), DATA, ROWS, algorithm=algorithm, group_size=6, seed=0)


def test_each_row_has_the_reward_of_its_reply_and_the_advantage_in_its_group():
    table = shown(advantage={"method": "group", "std": "sample", "top_k_ratio": 1.0})
    assert table["example_id"].tolist() == ["e10"] * 6 + ["e11"] * 6 + ["e12"] * 6
    answers = [DATA.examples.table["answers"].iloc[row] for row in table["group"]]
    assert table["reward_f1"].tolist() == pytest.approx(f1(list(table["reply"]), answers).tolist())
    assert table["reward"].to_numpy() == pytest.approx(
        sum(table[f"reward_{n}"] * w for n, w in TASK.rewards.component_weights.items())
    )
    for _, group in table.groupby("group"):
        rewards = group["reward"].to_numpy()
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + EPSILON) if np.ptp(rewards) else 0 * rewards
        assert group["advantage"].to_numpy() == pytest.approx(expected)
        assert group["group_is_tied"].all() == (not np.ptp(rewards))
    assert table["advantage"].abs().max() > 0.5


def test_an_arm_that_drew_nothing_in_training_draws_the_same_here_and_prediction_stores_a_few_examples():
    given = ["example_id", "reply", "tokens", "reward"]
    pd.testing.assert_frame_equal(shown("supervised")[given], shown("grpo")[given])
    assert (shown("supervised")["tokens"] > 0).all()
    model = ModelWeights(tensors=TASK.build_policy(0).state_dict(), config={})
    algorithm, training = algorithm_params("supervised"), training_params(group_size=3)
    predictions, rollouts, showcase = predict(algorithm, training, 0, TASK, DATA, model)
    assert len(rollouts) == 3 * len(ROWS)
    assert {"reward", "advantage"} <= set(rollouts.columns)
    assert set(showcase["example_id"]) == set(rollouts["example_id"]) == set(predictions["example_id"])
