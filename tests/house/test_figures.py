"""The figures are measured right on a package of a few lines, and those of this repository that were reached stay so."""

import subprocess
from pathlib import Path

import figures
import pytest
from step_files import Recorder, steps

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
    """A repository with the package toy: one circle over three modules, two modules with a single importer beside them."""
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


def test_a_single_importer_counts_when_it_is_a_sibling(toy: Path) -> None:
    """third imports first for types alone; rooms.second has one importer, in another folder; rooms.shared has two."""
    assert figures.single_importers(figures.import_graph(toy, "toy")) == ["toy.first", "toy.rooms.helper"]


def test_entries_are_the_tracked_files_and_folders_of_a_folder(toy: Path) -> None:
    counted = {folder: len(names) for folder, names in figures.entries(figures.tracked_files(toy)).items()}
    assert counted == {"src": 1, "src/toy": 4, "src/toy/rooms": 5}


def test_lines_with_a_word_are_found_outside_the_left_out_folder(toy: Path) -> None:
    assert figures.lines_with(toy, "second|nowhere", ("src",)) == ["src/toy/first.py:1:from toy.rooms.second import b"]
    assert figures.lines_with(toy, "second", ("src", ":!src/toy/first.py")) == []
    assert figures.lines_with(toy, "secon", ("src",)) == []


def test_a_body_begins_after_the_docstring() -> None:
    function = 'def f():\n    """Say.\n\n    More.\n    """\n    a = 1\n\n    # why\n    return a\n'
    text = function + 'class C:\n    def g(self): return 1\n    def h(self):\n        "Only words."\n'
    assert list(figures.body_lengths(text)) == [4, 1, 0]


def test_the_files_of_the_widest_step_are_kept() -> None:
    def code(name: str, text: str) -> dict[str, object]:
        names: dict[str, object] = {"called": called}
        exec(compile(text, f"/anywhere/src/grpo_pipeline/{name}", "exec"), names)
        return names

    called: list[object] = []
    called.append(code("core/inner.py", "def inner(): pass")["inner"])
    called.append(code("core/loaded.py", ""))  # its module level runs, no function of it
    loop = code("pipelines/loop.py", "class Loop:\n def run(self, state, batch):\n  if batch: called[0]()\n  return state")[
        "Loop"
    ]
    recorder = Recorder()
    loop.run = recorder.wrap(loop.run)  # type: ignore[attr-defined]
    assert loop().run("state", False) == "state"  # type: ignore[operator]
    assert recorder.widest == {"pipelines/loop.py"}
    loop().run("state", True)  # type: ignore[operator]
    loop().run("state", False)  # type: ignore[operator]
    assert recorder.widest == {"pipelines/loop.py", "core/inner.py"}


def test_the_training_step_is_found() -> None:
    assert {name for _, name in steps()}


def test_a_figure_that_was_reached_stays_so(root: Path) -> None:
    found = {figure.name: figure for figure in figures.measure(root)}
    assert not [(found[name].line(), found[name].places) for name in REACHED if not found[name].is_ok]
    assert found["source files"].value > 100
