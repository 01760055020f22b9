"""Parameters of one run: folders of its own, entries for every task, and the tasks whose parameters are checked."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kedro.validation.exceptions import ParameterValidationError

from grpo_pipeline.runs.parameters import beginnings, check_parameters, paths, tasks_of
from grpo_pipeline.runs.run_config_loader import RunConfigLoader
from grpo_pipeline.settings import CONFIG_LOADER_ARGS

ROOT = Path(__file__).resolve().parents[2]


def conf(folder: Path, **files: Any) -> Path:
    """Write configuration, one file for each ``<environment>_<name>``, and return its folder."""
    for name, content in files.items():
        env, _, file = name.partition("_")
        (folder / env).mkdir(exist_ok=True)
        (folder / env / f"{file}.yml").write_text(yaml.safe_dump(content))
    (folder / "local").mkdir(exist_ok=True)
    return folder


def loader(folder: Path, env: str | None = None, **given: Any) -> RunConfigLoader:
    return RunConfigLoader(str(folder), env=env, runtime_params=given or None, **CONFIG_LOADER_ARGS)


GLOBALS = {"data": "data", "attention_folder": "a", "dialogue_folder": "d"}


def test_a_name_of_the_globals_is_replaced_and_is_no_parameter(tmp_path: Path) -> None:
    folder = conf(tmp_path, base_globals=GLOBALS, base_parameters={"seed": 0, "rate": 1.5})
    found = loader(folder, attention_folder=7, data="/else/where", seed=3)
    replaced = {"data": "/else/where", "attention_folder": "7", "dialogue_folder": "d"}
    assert {name: found["globals"][name] for name in replaced} == replaced
    assert found["parameters"] == {"seed": 3, "rate": 1.5}
    plain = loader(folder, seed=3)
    assert {name: plain["globals"][name] for name in GLOBALS} == GLOBALS
    assert plain["parameters"] == {"seed": 3, "rate": 1.5}


@pytest.mark.parametrize("name", ["a/b", "a\\b", "", "/a"])
def test_a_folder_is_one_name(tmp_path: Path, name: str) -> None:
    folder = conf(tmp_path, base_globals=GLOBALS)
    with pytest.raises(ValueError, match=r"dialogue_folder must be the name of one folder, got '.*'; give it without a slash"):
        loader(folder, dialogue_folder=name)


CATALOG = {
    "{task}.x": {"type": "t", "filepath": "03/{folder}/{task}.json", "more": [{"deep": "{task}/{folder}"}, 3]},
    "{task}.{arm}.y": {"type": "t", "filepath": "06/{folder}/{arm}"},
    "dialogue.x": {"type": "own"},
}


@pytest.mark.parametrize(
    ("env", "named", "folders"),
    [
        ("base", {}, ("attention", "dialogue", "molecules")),
        ("local", {}, ("attention", "dialogue", "molecules")),
        (None, {"molecules_folder": "m"}, ("attention", "dialogue", "m")),
        ("mine", {}, ("attention_mine", "dialogue_mine", "molecules_mine")),
        ("mine", {"molecules_folder": "m"}, ("attention_mine", "dialogue_mine", "m")),
    ],
)
def test_an_entry_of_every_task_lies_in_the_folder_of_each(
    tmp_path: Path, env: str | None, named: dict[str, str], folders: tuple[str, ...]
) -> None:
    (tmp_path / "mine").mkdir()
    files = {"base_catalog": CATALOG, "base_parameters": {}} | ({"base_globals": named} if named else {})
    found = loader(conf(tmp_path, **files), env)["catalog"]
    for task, folder in zip(("attention", "dialogue", "molecules"), folders, strict=True):
        if task != "dialogue":
            assert found[f"{task}.x"] == {
                "type": "t", "filepath": f"03/{folder}/{task}.json", "more": [{"deep": f"{task}/{folder}"}, 3],
            }  # fmt: skip
        assert found[task + ".{arm}.y"] == {"type": "t", "filepath": f"06/{folder}/{{arm}}"}
    assert found["dialogue.x"] == {"type": "own"}
    assert len(found) == 6


def test_a_folder_of_the_run_itself_counts_in_the_catalogue(tmp_path: Path) -> None:
    found = loader(conf(tmp_path, base_catalog=CATALOG, base_globals=GLOBALS), attention_folder="again")["catalog"]
    assert found["attention.x"]["filepath"] == "03/again/attention.json"


ALL = ("attention", "dialogue", "molecules")


@pytest.mark.parametrize(
    ("pipelines", "tasks"),
    [
        ([], ALL),
        (["__default__"], ALL),
        (["molecules_data", "__default__"], ALL),
        (["attention"], ("attention",)),
        (["molecules_train", "attention_step"], ("attention", "molecules")),
        (["dialogue"], ("dialogue",)),
        (["compare"], ("attention",)),
        (["dialogue_compare", "gradient_flow"], ("attention", "dialogue")),
        (["attentions"], ()),
    ],
)
def test_the_parameters_of_the_tasks_that_are_run_are_checked(pipelines: list[str], tasks: tuple[str, ...]) -> None:
    assert tasks_of(pipelines) == tasks


def test_the_names_of_parameters_and_their_beginnings() -> None:
    given = {"a": {"b": {"c": 1}, "d": 2}, "e": 3}
    assert list(paths(given)) == ["a", "a.b", "a.d", "e"]
    assert list(paths(given, depth=1)) == ["a", "e"]
    assert list(paths(given, depth=3)) == ["a", "a.b", "a.b.c", "a.d", "e"]
    assert list(beginnings("a.b.c")) == ["a", "a.b", "a.b.c"]


@pytest.fixture(scope="module")
def smoke() -> tuple[Any, dict[str, Any]]:
    found = loader(ROOT / "conf", "smoke")
    return found, found["parameters"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"threads": 0}, "threads must be a whole number of at least 1, got 0"),
        ({"resume": "perhaps"}, "resume must be never or auto, got 'perhaps'"),
        ({"attention_foldr": "x"}, "attention_foldr must be a parameter .* did you mean attention_folder"),
        ({"molecules": {"dta": {}}}, "molecules.dta must be a parameter .* did you mean molecules.data"),
    ],
)
def test_each_check_of_parameters_is_asked(smoke: tuple[Any, dict[str, Any]], changed: dict[str, Any], said: str) -> None:
    found, given = smoke
    merged = {name: given[name] | changed[name] if isinstance(given.get(name), dict) else changed[name] for name in changed}
    with pytest.raises(ValueError, match=said):
        check_parameters(given | merged, found, ["attentions"])


def test_values_of_the_tasks_that_are_run_are_checked_all_at_once(smoke: tuple[Any, dict[str, Any]]) -> None:
    found, given = smoke
    dialogue = given["dialogue"]
    wrong = {"training": dialogue["training"] | {"epochs": "many"}, "evaluation": dialogue["evaluation"] | {"samples": "many"}}
    changed = given | {"dialogue": dialogue | wrong}
    for pipelines in (["dialogue_train"], [], ["dialogue"]):
        with pytest.raises(ParameterValidationError) as refused:
            check_parameters(changed, found, pipelines)
        assert all(f"dialogue.{name}" in str(refused.value) for name in wrong)
    check_parameters(changed, found, ["molecules"])
    check_parameters(given, found, [])
