"""A part of reward or supervised loss: taking it away is its file, its field and row, its test and its line of YAML."""

import pytest
from importers import importers

TASK = "tasks/attention"
ALONE: frozenset[str] = frozenset()
# Part of a section -> what else knows it, and why.
REWARDS = {
    **dict.fromkeys(("correct_class", "heatmap", "diversity", "activation", "boundary", "points", "dice"), ALONE),
}
LOSSES = {
    **dict.fromkeys(("correct_class", "entropy", "glimpse", "heatmap_outline", "mil", "needle"), ALONE),
    # The formula is that of the reward and of the glimpse decoder, too; its clamp says where a heatmap begins.
    "heatmap": {f"{TASK}/rewards/heatmap.py", f"{TASK}/losses/glimpse.py", f"{TASK}/build.py"},
    # Networks that draw outlines without a policy learn the same.
    "outline": {f"{TASK}/model/outline_network.py", f"{TASK}/model/encoder/outline_pretraining.py"},
}
# What is no component of what has been decoded: a factor on advantages, a penalty of a module, a question to the policy.
OF_THE_TASK = {
    ("rewards", "priority"): ALONE,
    ("losses", "ridge"): ALONE,
    ("losses", "location"): {f"{TASK}/model/encoder/outline_pretraining.py"},
}


@pytest.mark.parametrize(
    ("folder", "section", "name", "others"),
    [(folder, section, name, others)
     for folder, section, parts in (("rewards", "reward", REWARDS), ("losses", "supervised_loss", LOSSES))
     for name, others in parts.items()],
)  # fmt: skip
def test_a_part_is_known_to_its_section_alone(folder: str, section: str, name: str, others: frozenset[str]) -> None:
    package = f"grpo_pipeline.{TASK.replace('/', '.')}.{folder}"
    assert importers(package, name) == {f"{TASK}/{folder}/{section}.py"} | others


@pytest.mark.parametrize(("folder", "name"), OF_THE_TASK)
def test_what_is_no_component_is_known_to_the_task_alone(folder: str, name: str) -> None:
    package = f"grpo_pipeline.{TASK.replace('/', '.')}.{folder}"
    assert importers(package, name) == {f"{TASK}/task.py"} | OF_THE_TASK[folder, name]
