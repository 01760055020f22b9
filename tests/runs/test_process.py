"""Who ran what, and whether it still runs."""

import subprocess
import sys

import pytest

from grpo_pipeline.runs.process import command_line, is_gone, process_tags, set_mlflow_defaults, source_tags, start_time


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
    assert clean["argv"] == "kedro run"


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
