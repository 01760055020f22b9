"""The Kedro side of the task: pictures -> examples -> task and data."""

import pandas as pd
from kedro.pipeline import Node, Pipeline
from sklearn.datasets import load_digits

from digits.task import Digits, DigitsTask, ModelParams


def load_pictures(data: dict) -> Digits:
    """Take the first pictures of scikit-learn's digits; every tenth is for validation, every fifth for the test."""
    pictures = load_digits()
    n = data["pictures"]
    split = ["val" if i % 10 == 0 else "test" if i % 5 == 1 else "train" for i in range(n)]
    table = pd.DataFrame({"digit_id": [f"{i:04d}" for i in range(n)], "label": pictures.target[:n], "split": split})
    return Digits(table, (pictures.data[:n] / 16).astype("float32"))


def build_task(model: ModelParams) -> DigitsTask:
    """Put the task together."""
    return DigitsTask(model)


def pass_on(examples: Digits) -> Digits:
    """Return the examples: nothing is computed from them."""
    return examples


def create_pipeline() -> Pipeline:
    """Wire parameters -> ``digits.examples``."""
    return Pipeline([Node(load_pictures, "params:digits.data", "digits.examples", name="load_pictures", namespace="digits.data")])


def create_preparation() -> Pipeline:
    """Wire ``digits.examples`` -> ``digits.task`` and ``digits.data``."""
    task = Node(build_task, "params:digits.model", "digits.task", name="build_task", namespace="digits.data")
    return Pipeline([task, Node(pass_on, "digits.examples", "digits.data", name="pass_on", namespace="digits.data")])
