"""The table fits the code, and the command tells a fault that is caught from one that is not."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import run as command
from mutation import read_faults
from run import RunError, Verdicts, select, stray_modules
from table import KINDS, MUTATIONS, Mutation

import grpo_pipeline

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(Path(__file__).with_name("run.py"))]


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


def write_table(folder: Path, *faults: tuple[str, str, str]) -> str:
    """Write a table of faults (old, new, test) of core/schedules.py and return its path."""
    found = tuple(Mutation(f"fault-{n}", "sign", "core/schedules.py", *fault[:2], fault[2:]) for n, fault in enumerate(faults))
    path = folder / "other.py"
    path.write_text(f"from table import Mutation\n\nMUTATIONS = {found!r}\n", encoding="utf-8")
    return str(path)


def test_every_fault_applies_leaves_python_and_names_tests_that_exist() -> None:
    problems = []
    read = cache(lambda path: path.read_text(encoding="utf-8") if path.is_file() else "")
    meaning = cache(lambda text: ast.dump(ast.parse(text)))
    for mutation in MUTATIONS:
        text = read(ROOT / "src" / "grpo_pipeline" / mutation.file)
        if text.count(mutation.old) != 1:
            problems.append(f"{mutation.name}: {mutation.old!r} occurs {text.count(mutation.old)} times in {mutation.file}")
        elif ast.dump(ast.parse(mutation.applied(text))) == meaning(text):
            problems.append(f"{mutation.name}: changes a comment or a docstring alone")
        for test in mutation.tests:
            path, _, name = test.partition("::")
            found = read(ROOT / "tests" / path)
            if not found or (name and f"\ndef {name}(" not in found):
                problems.append(f"{mutation.name}: no test {test}")
    assert not problems, "\n".join(problems)
    assert all(mutation.tests for mutation in MUTATIONS)


def test_names_are_unique_and_every_kind_is_there() -> None:
    assert len(MUTATIONS) >= 300
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    counted = Counter(mutation.kind for mutation in MUTATIONS)
    assert sorted(counted) == sorted(KINDS)
    assert min(counted.values()) >= 2


def test_every_property_is_what_finds_some_fault() -> None:
    path = "core/test_properties.py"
    written = set(re.findall(r"^def (test_\w+)", (ROOT / "tests" / path).read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {f"{path}::{name}" for name in written} == {t for m in MUTATIONS for t in m.tests if t.startswith(path)}


def test_parts_of_the_table_are_chosen_by_the_path_of_the_file() -> None:
    chosen = select(MUTATIONS, [], ["core/", "pipelines/step"])
    assert {mutation.file.split("/")[0] for mutation in chosen} == {"core", "pipelines"}
    assert len(chosen) < len(MUTATIONS) == len(select(MUTATIONS, []))
    with pytest.raises(RunError, match="--only must name part of a faulty file's path, got nowhere"):
        select(MUTATIONS, [], ["nowhere"])


def test_a_verdict_is_kept_until_it_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    Verdicts(path, fresh=False).put("key", True, 1.5, "a test")
    assert Verdicts(path, fresh=False).get("key") == [True, 1.5, "a test"]
    assert Verdicts(path, fresh=True).get("key") is None
    assert Verdicts(None, fresh=False).get("key") is None


def test_a_fault_is_three_lines(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text("a | sign | core/x.py | core/test_x.py core/test_y.py\n- x + y\n+ x - y\n", encoding="utf-8")
    assert list(read_faults(path)) == [Mutation("a", "sign", "core/x.py", "x + y", "x - y", ("core/test_x.py", "core/test_y.py"))]
    path.write_text("a | sign | core/x.py | core/test_x.py\n- x + y\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a fault must be a line about it, one with - and one with"):
        list(read_faults(path))


def test_a_fault_that_does_not_apply_is_refused() -> None:
    with pytest.raises(ValueError, match="the text of mutation m must occur once in core/x.py, got 2 times; correct the table"):
        Mutation("m", "sign", "core/x.py", "a", "b", ()).applied("a + a")


def test_a_package_that_is_not_the_copy_is_noticed(tmp_path: Path) -> None:
    assert "grpo_pipeline" in stray_modules(tmp_path)
    assert "grpo_pipeline" not in stray_modules(ROOT / "src")


def test_a_project_that_a_test_starts_holds_the_faulty_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_project: Callable[[Path], Path]
) -> None:
    faulty = tmp_path / "faulty" / "grpo_pipeline"
    faulty.mkdir(parents=True)
    (faulty / "__init__.py").write_text("FAULT = 1\n", encoding="utf-8")
    monkeypatch.setattr(grpo_pipeline, "__file__", str(faulty / "__init__.py"))
    started = make_project(tmp_path / "project") / "src" / "grpo_pipeline"
    assert [(path.name, path.read_text(encoding="utf-8")) for path in started.iterdir()] == [("__init__.py", "FAULT = 1\n")]


HARMLESS = ("Return the value at one step", "Say the value at one step", "core/test_schedules.py")


@pytest.mark.slow
def test_the_command_tells_a_fault_that_is_caught_from_a_change_that_survives(tmp_path: Path) -> None:
    (upside_down,) = (mutation for mutation in MUTATIONS if mutation.name == "schedules-cosine-upside-down")
    status, printed = run("--table", write_table(tmp_path, (upside_down.old, upside_down.new, HARMLESS[2]), HARMLESS))
    assert status == 1, printed
    first, *rows, last = printed.splitlines()
    assert first.startswith("without a fault: all tests pass")
    assert re.fullmatch(r"fault-0 \| sign        \| caught   \| +[\d.]+ s \| core/test_schedules.py::\S+", min(rows))
    assert re.fullmatch(r"fault-1 \| sign        \| SURVIVED \| +[\d.]+ s", max(rows))
    assert re.fullmatch(r"1 of 2 caught, \d+ s", last)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (("no such text", *HARMLESS[1:]), "must occur once in core/schedules.py, got 0 times"),
        ((*HARMLESS[:2], "core/no_such_test.py"), "the tests must pass without a fault, got status 4"),
    ],
)
def test_the_command_refuses_what_it_cannot_answer(tmp_path: Path, fault: tuple[str, str, str], message: str) -> None:
    status, printed = run("--table", write_table(tmp_path, fault))
    assert status == 2
    assert message in printed


def test_the_status_is_0_where_no_fault_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    for survivors in (0, 3):
        monkeypatch.setattr(command, "run_all", lambda *args, survivors=survivors, **options: survivors)
        monkeypatch.setattr(command.os, "environ", {})
        assert command.main([]) == min(survivors, 1)


def test_the_command_refuses_an_unknown_name() -> None:
    status, printed = run("no-such-fault")
    assert status == 2
    assert printed.startswith("a name must be one of the table's")
