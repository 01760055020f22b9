"""Arms are found in namespaces, and end as they deserve."""

import pytest
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.tracking.arm_runs import Arm, dataset_key, end_statuses, find_arms, node_key, status_of


def node(name, namespace, inputs=None, outputs="out"):
    return Node(lambda *args: None, inputs, outputs, name=name, namespace=namespace)


@pytest.mark.parametrize(
    ("namespace", "key"),
    [
        ("attention.grpo", ("attention", "grpo")),
        ("attention.grpo.probe", ("attention", "grpo")),
        ("attention.data", None),
        ("attention", None),
        (None, None),
    ],
)
def test_the_arm_of_a_node(namespace, key):
    assert node_key(node("x", namespace, outputs=f"{namespace}.out" if namespace else "out")) == key


@pytest.mark.parametrize(
    ("name", "key"), [("attention.grpo.metric_rows", ("attention", "grpo")), ("attention.comparison", None), ("params", None)]
)
def test_the_arm_of_a_dataset(name, key):
    assert dataset_key(name) == key


def pipeline():
    return Pipeline(
        [
            node("data", "attention", None, "attention.examples"),
            node("train", "attention.grpo", ["attention.examples", "attention.grpo.resume_from"], "attention.grpo.model"),
            node("predict", "attention.grpo", ["attention.grpo.model"], "attention.grpo.predictions"),
            node("train", "attention.supervised", ["attention.examples"], "attention.supervised.model"),
        ]
    ).nodes


def test_arms_of_a_pipeline():
    arms = find_arms(pipeline(), resume=False)
    assert {key: (arm.nodes_left, arm.awaits_checkpoint) for key, arm in arms.items()} == {
        ("attention", "grpo"): (2, False),
        ("attention", "supervised"): (1, False),
    }


def test_only_a_resumed_arm_with_a_checkpoint_to_load_waits():
    arms = find_arms(pipeline(), resume=True)
    assert {arm.name: arm.awaits_checkpoint for arm in arms.values()} == {"grpo": True, "supervised": False}


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "FINISHED"), (ValueError(), "FAILED"), (KeyboardInterrupt(), "KILLED"), (SystemExit(143), "KILLED")],
)
def test_words_for_an_end(error, status):
    assert status_of(error) == status


def test_an_arm_that_was_done_has_finished_whatever_came_later():
    arms = {
        ("t", "done"): Arm("t", "done", nodes_left=0, is_open=True),
        ("t", "current"): Arm("t", "current", nodes_left=0, is_open=True),
        ("t", "half"): Arm("t", "half", nodes_left=1, is_open=True),
        ("t", "never"): Arm("t", "never", nodes_left=3),
    }
    assert end_statuses(arms, current=("t", "current"), error=ValueError()) == {
        "t.done": "FINISHED",
        "t.current": "FAILED",
        "t.half": "FAILED",
    }
    assert set(end_statuses(arms, current=None, error=None).values()) == {"FINISHED"}
