"""The table fits the code, and the command tells a fault that is caught from one that is not."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from run import stray_modules
from table import KINDS, MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(Path(__file__).with_name("run.py"))]


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


def write_table(folder: Path, old: str, new: str, test: str) -> str:
    """Write a table of one fault of core/schedules.py and return its path."""
    fault = Mutation("a-fault", "sign", "core/schedules.py", old, new, (test,))
    path = folder / "other.py"
    path.write_text(f"from table import Mutation\n\nMUTATIONS = ({fault!r},)\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_fault_applies_and_leaves_python(mutation: Mutation) -> None:
    text = (ROOT / "src" / "grpo_pipeline" / mutation.file).read_text(encoding="utf-8")
    faulty = mutation.applied(text)
    assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(text))  # not a comment or a docstring alone
    assert "\n" not in mutation.old + mutation.new


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_named_tests_exist(mutation: Mutation) -> None:
    assert mutation.tests
    for test in mutation.tests:
        path, _, name = test.partition("::")
        text = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert not name or f"\ndef {name}(" in text


def test_names_are_unique_and_every_kind_is_there() -> None:
    assert len(MUTATIONS) >= 25
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    counted = Counter(mutation.kind for mutation in MUTATIONS)
    assert sorted(counted) == sorted(KINDS)
    assert min(counted.values()) >= 2


def test_every_property_is_what_finds_some_fault() -> None:
    path = "core/test_properties.py"
    written = set(re.findall(r"^def (test_\w+)", (ROOT / "tests" / path).read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {f"{path}::{name}" for name in written} == {t for m in MUTATIONS for t in m.tests if t.startswith(path)}


def test_a_fault_that_does_not_apply_is_refused() -> None:
    with pytest.raises(ValueError, match="the text of mutation m must occur once in core/x.py, got 2 times; correct the table"):
        Mutation("m", "sign", "core/x.py", "a", "b", ()).applied("a + a")


def test_a_package_that_is_not_the_copy_is_noticed(tmp_path: Path) -> None:
    assert "grpo_pipeline" in stray_modules(tmp_path)
    assert "grpo_pipeline" not in stray_modules(ROOT / "src")


@pytest.mark.slow
def test_the_command_shows_that_faults_are_caught() -> None:
    status, printed = run("schedules-cosine-upside-down", "schedules-end-one-late")
    assert status == 0, printed
    rows = printed.splitlines()
    assert rows[0].startswith("without a fault: all tests pass")
    assert re.fullmatch(
        r"schedules-cosine-upside-down \| sign        \| caught   \| +[\d.]+ s \| core/test_schedules.py::\w+", rows[1]
    )
    assert rows[-1] == "2 of 2 caught"


def test_the_command_shows_that_a_harmless_change_survives(tmp_path: Path) -> None:
    table = write_table(tmp_path, "Return the value at one step", "Say the value at one step", "core/test_schedules.py")
    status, printed = run("--table", table)
    assert status == 1, printed
    assert re.search(r"^a-fault \| sign        \| SURVIVED \| +[\d.]+ s\n0 of 1 caught$", printed, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("old", "test", "message"),
    [
        ("no such text", "core/test_schedules.py", "must occur once in core/schedules.py, got 0 times"),
        ("Return the value at one step", "core/no_such_test.py", "the tests must pass without a fault, got status 4"),
    ],
)
def test_the_command_refuses_what_it_cannot_answer(tmp_path: Path, old: str, test: str, message: str) -> None:
    status, printed = run("--table", write_table(tmp_path, old, "", test))
    assert status == 2
    assert message in printed


def test_the_command_refuses_an_unknown_name() -> None:
    status, printed = run("no-such-fault")
    assert status == 2
    assert printed.startswith("a name must be one of the table's")
