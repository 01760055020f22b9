"""Every entrance is the same product: Kedro's own sessions, IPython, parts of pipelines, a console without Unicode."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kedro_processes import run

START = """
import os
from kedro.framework.session import KedroServiceSession, KedroSession
from kedro.framework.startup import bootstrap_project
bootstrap_project(os.getcwd())

def attempt(**given):
    try:
        with KedroSession.create(project_path=os.getcwd(), env="smoke", runtime_params=given) as session:
            session.run(pipeline_names=["attention_data"])
        print("ok")
    except (Exception, KeyboardInterrupt) as error:
        print(type(error).__name__, *str(error).split())
"""
FAILS = """
attempt(attention={"data": {"root": "/nowhere"}})
attempt(attention={"data": {"rooot": "/nowhere"}})
attempt(sed=1)
attempt()
"""
INTERRUPTED = """
from grpo_pipeline.tasks.attention.pipelines import nodes
from grpo_pipeline.runs import provenance
commit = provenance.Provenance.commit
def interrupt(self):
    provenance.Provenance.commit = commit
    raise KeyboardInterrupt
provenance.Provenance.commit = interrupt
attempt()
from pathlib import Path
print("waiting files:", [path.name for path in Path("data/.runs").glob("*.staged")])
attempt()
"""
SERVICE = """
with KedroServiceSession.create(project_path=os.getcwd(), env="smoke") as session:
    for given in ({"sed": 1}, {"attention": {"phantom": {"patients": 14}}}, {}):
        try:
            session.run(pipeline_names=["attention_data"], runtime_params=given)
            print("ok")
        except Exception as error:
            print(type(error).__name__, *str(error).split())
"""
CELLS = """
import os
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("%load_ext kedro.ipython")
shell.run_cell("%reload_kedro --env smoke")
for _ in range(2):
    shell.run_cell('session.run(pipeline_names=["attention_data"])')
shell.run_cell("%reload_kedro --env smoke --params sed=1")
"""


def said(project: Path, code: str) -> list[str]:
    done = run(project, code=START + code)
    assert done.returncode == 0, done.stderr
    assert "ended without a word" not in done.stderr
    return done.stdout.splitlines()


def test_a_failed_run_in_a_script_leaves_nothing_locked(project: Path) -> None:
    root, name, seed, last = said(project, FAILS)
    assert root.startswith("DatasetError attention.raw: the data root must be an existing folder")
    assert "Parameter 'attention.data'" in name
    assert seed == "ValueError sed must be a parameter of this project, got an unknown name; did you mean seed?"
    assert last == "ok"


def test_ctrl_c_in_a_script_leaves_nothing_locked(project: Path) -> None:
    assert said(project, INTERRUPTED) == ["KeyboardInterrupt", "waiting files: []", "ok"]


def test_a_session_of_many_runs_checks_each(project: Path) -> None:
    sed, *rest = said(project, SERVICE)
    assert sed == "ValueError sed must be a parameter of this project, got an unknown name; did you mean seed?"
    assert rest == ["ok", "ok"]


def test_in_ipython_a_second_run_gets_kedros_sentence(project: Path) -> None:
    pytest.importorskip("IPython", reason="needs IPython, an extra of notebooks")
    output = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(said(project, CELLS)))
    assert "KedroSessionError: A run has already been completed" in output
    assert output.count("Error: ") == 2
    assert "ValueError: sed must be a parameter of this project, got an unknown name; did you mean seed?" in output


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory, copy_of_run: Callable[[Path], Path]) -> Path:
    """A project that has run, in which nothing is to change."""
    return copy_of_run(tmp_path_factory.mktemp("untouched") / "project")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--from-nodes", "attention-train_grpo.train"], "run --pipelines attention_train"),
        (["--tags", "grpo"], "run --pipelines attention_train"),
        (["--runner", "ParallelRunner"], "--runner must be SequentialRunner, got ParallelRunner"),
        (["--runner", "ThreadRunner"], "--runner must be SequentialRunner, got ThreadRunner"),
        (["--load-versions", "attention.examples:v1"], "--load-versions must name a versioned dataset"),
        (["--pipelines", "attention_train", "--runner-params", "is_async=True"], "leave --async out"),
    ],
)
def test_what_cannot_run_is_refused_with_what_can(untouched: Path, arguments: list[str], wanted: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in (untouched / "data").rglob("*") if path.is_file()}
    done = run(untouched, "--pipelines", "attention", *arguments)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, wanted in line) == (1, True), done.stderr
    assert "Traceback" not in done.stderr
    notes = untouched / "data" / ".runs"
    after = {path: path.stat().st_mtime_ns for path in (untouched / "data").rglob("*") if path.is_file()}
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path) and notes not in path.parents}
    assert changed == set()


IN_ASCII = """
import sys
from kedro.framework.cli import main
sys.stdout, sys.stderr = (open(number, "w", encoding="ascii") for number in (1, 2))  # as with PYTHONIOENCODING=ascii
sys.argv = ["kedro", *sys.argv[1:]]
main()
"""


def test_a_console_without_unicode_gets_the_whole_table(smoke_copy: Path) -> None:
    """The page is not drawn again: what is printed comes from the comparison and the answer."""
    parts = ("--pipelines", "attention_evaluate", "--to-outputs", "attention.comparison,attention.answer")
    done = run(smoke_copy, "run", "--env", "smoke", *parts, code=IN_ASCII)
    assert done.returncode == 0, done.stderr
    assert "grpo - supervised" in done.stdout
    assert done.stdout.isascii()
    assert "?" not in done.stdout
