"""The figures are measured right on a package of a few lines, and those of this repository that were reached stay so."""

import subprocess
from pathlib import Path

import figures
import pytest
from toy_step import functions_of_a_step

# Add a figure when its target is reached.
REACHED = ("bytes of README.md", "numbers in README.md", 'docstrings that begin with "What"')
TOY = {
    "__init__.py": "",
    "first.py": "from toy.rooms.second import b\n",
    "rooms/__init__.py": "",
    "rooms/second.py": "def b():\n    from toy import third\n    return third\n",
    "rooms/helper.py": "",
    "rooms/user.py": "import toy.rooms.helper\nimport toy.rooms.shared\n",
    "rooms/shared.py": "",
    "third.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy import first\nimport toy.rooms.shared\n",
}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A repository with the package toy: one circle over three modules."""
    for name, text in TOY.items():
        file = tmp_path / "src" / "toy" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    (tmp_path / "src" / "toy" / "untracked.py").touch()
    return tmp_path


def test_circles_hold_imports_of_functions_and_for_types(toy: Path) -> None:
    graph = figures.import_graph(toy, "toy")
    assert figures.import_circles(graph) == [["toy.first", "toy.rooms.second", "toy.third"]]


def test_lines_with_a_word_are_found_outside_the_left_out_folder(toy: Path) -> None:
    assert figures.lines_with(toy, "second|nowhere", ("src",)) == ["src/toy/first.py:1:from toy.rooms.second import b"]
    assert figures.lines_with(toy, "second", ("src", ":!src/toy/first.py")) == []
    assert figures.lines_with(toy, "secon", ("src",)) == []


def test_tokens_are_names_operators_numbers_and_strings() -> None:
    assert figures.token_count('def f(a):\n    """Say."""\n    # why\n    return a + 1\n') == 11


def test_a_step_runs_what_its_arm_has() -> None:
    control, learner = functions_of_a_step("supervised"), functions_of_a_step("grpo")
    policy = "pipelines/step/parts/policy.py:policy_term"
    assert policy in learner
    assert policy not in control
    assert learner["pipelines/step/parts/entropy.py:entropy_term"] == 1  # one return


def test_a_figure_that_was_reached_stays_so(root: Path) -> None:
    found = {figure.name: figure for figure in figures.measure(root)}
    assert not [(found[name].line(), found[name].places) for name in REACHED if not found[name].is_ok]
    assert found["source files"].value > 100
