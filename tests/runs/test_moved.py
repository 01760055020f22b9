import importlib
from pkgutil import resolve_name

import pytest
from kedro.io import DataCatalog, DatasetError

from grpo_pipeline.rewards.functions import load_function
from grpo_pipeline.runs.moved import CLASSES, MOVED, PACKAGE, RENAMED
from grpo_pipeline.runs.parameters import check_renamed


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_name_says_the_new_one(old):
    with pytest.raises(ModuleNotFoundError, match=f"write {PACKAGE}{MOVED[old]}$"):
        importlib.import_module(PACKAGE + old)
    importlib.import_module(PACKAGE + MOVED[old])


def test_a_reward_and_a_dataset_say_it_too():
    with pytest.raises(ValueError, match=r"write grpo_pipeline\.tasks\.dialogue\.scores"):
        load_function("grpo_pipeline.tasks.dialogue.f1:f1")
    entry = {"type": "grpo_pipeline.datasets.figure_folder.FigureFolderDataset", "filepath": "x"}
    with pytest.raises(DatasetError, match=r"write grpo_pipeline\.datasets\.figure"):
        DataCatalog.from_config({"figures": entry})["figures"]


@pytest.mark.parametrize("old", sorted(CLASSES))
def test_a_class_that_left_its_module_says_where_it_is(old):
    with pytest.raises(DatasetError, match=f"write {PACKAGE}{CLASSES[old]}"):
        DataCatalog.from_config({"x": {"type": PACKAGE + old, "filepath": "x"}})["x"]
    assert resolve_name(PACKAGE + CLASSES[old])
    with pytest.raises(AttributeError, match="has no attribute 'Unknown'"):
        resolve_name(f"{PACKAGE}{old.rpartition('.')[0]}.Unknown")


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_an_old_name_of_a_parameter_says_the_new_one(old):
    *sections, name = old.split(".")
    given: dict[str, object] = {name: 4}
    for section in reversed(sections):
        given = {section: given}
    with pytest.raises(
        ValueError, match=f"^mine.{old} must be given by its new name, got its old one; write mine.{RENAMED[old]}$"
    ):
        check_renamed({"seed": 0, "mine": given})
    check_renamed({"seed": 0, "mine": {"other": given, name + "s": 4}})


def test_a_name_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match="No module named 'grpo_pipeline.core.unknown'"):
        importlib.import_module("grpo_pipeline.core.unknown")
