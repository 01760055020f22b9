import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.data.dialogue.report import reply_groups


def rollouts(replies, rewards, advantages, *, example="e1"):
    rewards = np.asarray(rewards, dtype=float)
    return pd.DataFrame(
        {
            "example_id": example,
            "needs": "story",
            "question": "persona: <b>i bake</b>. context: hi",
            "answer": "a ring",
            "sample": range(len(replies)),
            "reply": replies,
            "reward_f1": rewards / 2,
            "reward_brevity": rewards / 2,
            "reward": rewards,
            "advantage": advantages,
        }
    )


def test_replies_stand_by_falling_reward_with_their_parts_and_what_they_teach():
    (group,) = reply_groups(rollouts(["a bell", "a ring", "nothing"], [0.5, 2.0, 0.1], [-0.3, 1.2, 0.0]), limit=3)
    assert group.replies.heads == ["reply", "times", "f1", "brevity", "reward", "advantage"]
    assert [[cell.text for cell in row] for row in group.replies.rows] == [
        ["a ring", "1", "1.000", "1.000", "2.000", "+1.20"],
        ["a bell", "1", "0.250", "0.250", "0.500", "-0.30"],
        ["nothing", "1", "0.050", "0.050", "0.100", "+0.00"],
    ]
    assert [row[-1].tone for row in group.replies.rows] == ["better", "worse", ""]
    assert "the right reply is “a ring”" in group.replies.caption
    assert (group.needs, group.question) == ("story", "persona: <b>i bake</b>. context: hi")


def test_equal_replies_are_one_row_with_their_number():
    (group,) = reply_groups(rollouts(["yes", "no", "yes"], [1.0, 0.0, 1.0], [0.5, -1.0, 0.5]), limit=1)
    assert [(row[0].text, row[1].text) for row in group.replies.rows] == [("yes", "2"), ("no", "1")]


def test_an_empty_reply_and_a_reward_that_failed_are_named():
    (group,) = reply_groups(rollouts([np.nan, "no"], [np.nan, 0.4], [0.0, 0.0]), limit=1)
    assert [cell.text for cell in group.replies.rows[-1]] == ["(nothing)", "1", *["not measured"] * 3, "+0.00"]


def test_it_keeps_to_the_first_examples():
    table = pd.concat([rollouts(["x"], [1.0], [0.0], example=name) for name in ("b", "a", "c")])
    assert [group.replies.caption[:1] for group in reply_groups(table, limit=2)] == ["b", "a"]
