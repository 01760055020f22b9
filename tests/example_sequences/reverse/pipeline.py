"""The Kedro side of the task: words -> examples -> task and data."""

from itertools import product

import numpy as np
import pandas as pd
from kedro.pipeline import Node, Pipeline

from reverse.spec import ModelParams
from reverse.task import LETTERS, ReverseTask, Words


def make_words(data: dict) -> Words:
    """Take all words of up to four letters, in an order that the seed decides; a tenth for validation, a fifth for the test."""
    words = ["".join(letters) for n in range(1, data["letters"] + 1) for letters in product(LETTERS, repeat=n)]
    order = np.random.default_rng(data["seed"]).permutation(len(words))
    split = np.array(["val" if i % 10 == 0 else "test" if i % 5 == 1 else "train" for i in range(len(words))])
    return Words(pd.DataFrame({"word": np.array(words)[order], "split": split}))


def build_task(model: ModelParams) -> ReverseTask:
    """Put the task together, before a stage has trained its start."""
    return ReverseTask(model)


def pass_on(examples: Words) -> Words:
    """Return the examples: nothing is computed from them."""
    return examples


def create_pipeline() -> Pipeline:
    """Wire parameters -> ``reverse.examples``."""
    return Pipeline([Node(make_words, "params:reverse.data", "reverse.examples", name="make_words", namespace="reverse.data")])


def create_preparation() -> Pipeline:
    """Wire ``reverse.examples`` -> ``reverse.task`` and ``reverse.data``."""
    task = Node(build_task, "params:reverse.model", "reverse.task", name="build_task", namespace="reverse.data")
    return Pipeline([task, Node(pass_on, "reverse.examples", "reverse.data", name="pass_on", namespace="reverse.data")])
