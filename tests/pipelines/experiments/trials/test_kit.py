import numpy as np
import pytest
from tiny_attention import make_examples

from grpo_pipeline.pipelines.experiments.trials.setups import find_setup
from grpo_pipeline.tasks.attention.params import ModelParams, RewardParams, SupervisedParams


def test_the_sections_are_those_that_the_preparing_nodes_read():
    models = find_setup("attention").models
    assert {"model": ModelParams, "reward": RewardParams, "supervised_loss": SupervisedParams}.items() <= models.items()
    assert "training" not in models


def test_a_task_that_is_unknown_is_refused():
    with pytest.raises(ValueError, match="a task must be one of attention, dialogue, molecules, got 'chess'"):
        find_setup("chess")


def test_a_split_replaces_that_of_the_examples():
    examples = make_examples()
    there = find_setup("attention").resplit(examples, {"c00": "test", "c01": "train", "c02": "val"})
    assert {name: there.rows(name).tolist() for name in ("train", "val", "test")} == {"train": [1], "val": [2], "test": [0]}
    assert np.shares_memory(there.images, examples.images)
    assert examples.rows("train").size == 8


def test_a_split_that_names_no_core_is_refused():
    with pytest.raises(ValueError, match="a split must name cores of the data, got 'c99'"):
        find_setup("attention").resplit(make_examples(), {"c99": "test"})
