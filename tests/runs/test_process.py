"""Who ran what on which code, and whether it still runs."""

import getpass
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import grpo_pipeline
from grpo_pipeline.runs.code_version import code_version, digest_of_sources, source_tags
from grpo_pipeline.runs.mlflow_defaults import set_mlflow_defaults
from grpo_pipeline.runs.process import command_line, is_gone, process_tags, start_time
from grpo_pipeline.runs.run_identity import begin_run, run_identity


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["/venv/bin/kedro", "run", "--params", "note=a b"], "kedro run --params 'note=a b'"),
        (["/lib/python3/kedro/__main__.py", "run"], "kedro run"),
        (["python -m kedro", "run", "--env", "smoke"], "kedro run --env smoke"),
        (["scripts/many.py", "3"], "many.py 3"),
        ([""], "python"),
    ],
)
def test_the_command_as_it_was_typed(argv, line):
    assert command_line(argv) == line


def git(folder, *args):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(["git", "-C", folder, *identity, *args], check=True, capture_output=True, text=True).stdout.strip()


def test_commit_and_dirty_flag(tmp_path):
    assert source_tags(tmp_path, ["kedro", "run"])["mlflow.source.git.commit"] == "unknown"
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "a")
    clean = source_tags(tmp_path, ["kedro", "run"])
    assert (clean["mlflow.source.git.commit"], clean["git.dirty"]) == (git(tmp_path, "rev-parse", "HEAD"), "false")
    (tmp_path / "a").write_text("2")
    assert source_tags(tmp_path, ["kedro", "run"])["git.dirty"] == "true"
    assert clean["argv"] == clean["mlflow.source.name"] == "kedro run"
    assert (clean["mlflow.source.type"], clean["mlflow.user"]) == ("LOCAL", getpass.getuser())


def test_this_process_is_not_gone():
    assert not is_gone(process_tags(), is_local_store=True)


def test_an_ended_process_is():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    tags = {**process_tags(), "process.pid": str(child.pid), "process.start": start_time(child.pid)}
    assert not is_gone(tags, is_local_store=True)
    child.communicate(b"\n")
    assert is_gone(tags, is_local_store=True)


@pytest.mark.parametrize(
    ("changed", "local", "gone"),
    [
        ({"process.start": "1"}, False, True),
        ({"process.host": "another"}, True, False),
        ({"process.boot": "earlier"}, True, True),
        ({"process.boot": "earlier"}, False, False),
        ({"process.namespace": "pid:[1]"}, True, False),
    ],
)
def test_what_cannot_be_seen_from_here_is_taken_to_run(changed, local, gone):
    assert is_gone({**process_tags(), **changed}, is_local_store=local) is gone


def test_a_users_own_setting_stays():
    environ = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}
    set_mlflow_defaults(environ)
    assert environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "60"
    assert environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process whose name holds what stands between the fields of /proc/<pid>/stat."""
    shutil.copy(shutil.which("sleep"), tmp_path / "a ) 1 2) b")
    process = subprocess.Popen([tmp_path / "a ) 1 2) b", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads /proc, which this system has not")
def test_the_time_of_a_start_is_that_of_its_process(sleeper: "subprocess.Popen[bytes]") -> None:
    seconds = int(start_time(sleeper.pid)) / os.sysconf("SC_CLK_TCK")
    assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - seconds < 60
    assert int(start_time(os.getpid())) < int(start_time(sleeper.pid))


def test_a_process_is_told_by_where_its_number_counts_and_when_it_began() -> None:
    here = process_tags()
    assert (here["process.host"], here["process.pid"]) == (os.uname().nodename, str(os.getpid()))
    assert here["process.start"] == start_time(os.getpid())
    if Path("/proc/self/ns/pid").exists():
        assert re.fullmatch(r"pid:\[\d+\]", here["process.namespace"])
        assert re.fullmatch(r"[0-9a-f-]{36}", here["process.boot"])


def test_each_run_has_an_identity_of_its_own() -> None:
    first, second = begin_run(), begin_run()
    assert run_identity() == second != first
    assert re.fullmatch(r"[0-9a-f]{12}", first)


def sources(folder: Path) -> Path:
    """Write a package of two folders and a file and return it."""
    files = {"core/a.py": "1", "core/deep/b.py": "2", "rewards/a.py": "3", "alone.py": "4", "core/notes.txt": "5"}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


NAMED = ("core", "rewards", "alone.py")


def test_a_digest_of_sources_holds_their_places_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written out: salt, then place and text of each file in order."""
    package = sources(tmp_path)
    expected = hashlib.sha256(b"saltcore/a.py1core/deep/b.py2rewards/a.py3alone.py4").hexdigest()
    assert digest_of_sources(package, NAMED, salt="salt") == expected
    found = Path.rglob
    # As another disk lists them.
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: sorted(found(self, pattern), reverse=True))
    assert digest_of_sources(package, NAMED, salt="salt") == expected


@pytest.mark.parametrize(
    ("command", "differs"),
    [
        ("printf 9 > core/deep/b.py", True),
        ("printf 9 > alone.py", True),
        ("mv core/a.py core/c.py", True),
        ("mv core/deep/b.py rewards/b.py", True),
        ("printf '' > rewards/new.py", True),
        ("rm rewards/a.py", True),
        ("printf 9 > core/notes.txt; mkdir other; printf 9 > other/a.py; touch -t 200001010000 core/a.py", False),
    ],
)
def test_each_change_of_a_source_changes_its_digest(tmp_path: Path, command: str, differs: bool) -> None:
    before = digest_of_sources(sources(tmp_path), NAMED)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert (digest_of_sources(tmp_path, NAMED) != before) is differs


TRAINING = ("core", "rewards", "statistics", "tasks", "pipelines/step", "pipelines/training")


def test_a_checkpoint_names_the_code_that_decides_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(grpo_pipeline, "__file__", str(tmp_path / "__init__.py"))
    seen = set()
    for folder in ("", *TRAINING, "runs", "pipelines/reporting"):
        (tmp_path / folder / "part").mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "part" / "code.py").write_text("x = 1")
        said = code_version.__wrapped__()
        assert (said["package"], said["torch"]) == (grpo_pipeline.__version__, str(torch.__version__))
        assert re.fullmatch(r"[0-9a-f]{12}", said["source"])
        seen.add(said["source"])
    assert len(seen) == 1 + len(TRAINING)
