"""The reward of docs/tutorials/own_reward.md, word for word: its environment is checked by test_documented_parameters.py."""

import re


def is_near(replies, answers, *, reach):
    """Pay 1 for the right number, less the further away a number is, and 0 for none."""
    return [nearness(reply, right[0], reach) for reply, right in zip(replies, answers, strict=True)]


def nearness(reply, right, reach):
    found = re.search(r"\d+", reply)
    return max(0.0, 1.0 - abs(int(found[0]) - int(right)) / reach) if found else 0.0
