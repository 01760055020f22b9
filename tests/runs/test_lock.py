"""One process holds a folder's lock; it ends with the process, however that ends, and a note left behind does not hold it."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from grpo_pipeline.runs import lock
from grpo_pipeline.runs.lock import HeldError, RunLock
from grpo_pipeline.runs.process import process_tags, start_time

HOLD = """
import os, sys, time
from pathlib import Path
from grpo_pipeline.runs.lock import HeldError, RunLock
try:
    lock = RunLock(Path(sys.argv[1]), shown="attention", remedy="--params attention_folder=b")
    lock.take(run=sys.argv[2], command="kedro run", since="noon")
except HeldError as error:
    sys.exit(str(error))
if sys.argv[3] == "fork" and os.fork() == 0:
    time.sleep(60)
print("held", flush=True)
time.sleep(60)
"""


def hold(path: Path, run: str = "a1", how: str = "alone") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLD, str(path), run, how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def take(path: Path, run: str = "mine") -> RunLock:
    lock = RunLock(path, shown="attention", remedy="--params attention_folder=b")
    lock.take(run=run, command="kedro run", since="now")
    return lock


def test_the_sentence_names_the_other_and_the_remedy(tmp_path: Path) -> None:
    other = hold(tmp_path / "x.lock")
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(HeldError) as refused:
            take(tmp_path / "x.lock")
        said = str(refused.value)
        for part in (f"run a1 (process {other.pid} on ", "since noon: kedro run)", f"kill {other.pid}"):
            assert part in said
        assert said.endswith("a folder of its own: --params attention_folder=b")
    finally:
        other.kill()
        other.communicate()


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_killed_owner_is_followed_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(logging.getLogger("grpo_pipeline"), "propagate", True)
    other = hold(tmp_path / "x.lock", how=how)
    try:
        assert other.stdout.readline() == "held\n"
        other.kill()  # a process that it has forked lives on and must not hold the lock
        other.wait()
        with caplog.at_level(logging.WARNING, logger="grpo_pipeline.runs.lock"):
            take(tmp_path / "x.lock").release()
        assert f"The run a1 (process {other.pid}, since noon) ended without a word" in caplog.text
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(other.pid, 9)
        other.communicate()


def test_of_many_that_start_at_once_one_gets_it(tmp_path: Path) -> None:
    others = [hold(tmp_path / "x.lock", run=str(number)) for number in range(6)]
    try:
        with ThreadPoolExecutor() as pool:
            lines = [*pool.map(lambda other: other.stdout.readline(), others)]
        assert sorted(lines) == [""] * 5 + ["held\n"]
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_one_process_does_not_get_it_twice_and_a_release_frees_it(tmp_path: Path) -> None:
    lock = take(tmp_path / "x.lock", run="first")
    with pytest.raises(HeldError, match="by run first"):
        take(tmp_path / "x.lock")
    lock.release()
    lock.release()
    assert (tmp_path / "x.lock").read_bytes() == b""
    take(tmp_path / "x.lock").release()


@pytest.mark.parametrize(
    ("refusal", "note"),
    [
        *((error, process_tags() | {"run": "a1"}) for error in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)),
        *((error, {}) for error in (errno.EAGAIN, errno.EACCES)),
    ],
)
def test_a_lock_is_held_where_its_note_says_so_or_the_system_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int, note: dict[str, str]
) -> None:
    """A file system without locks, and another process that has the lock and has not written its note yet."""

    def refuse(*_: object) -> None:
        raise OSError(refusal, "refused")

    other = subprocess.Popen(["sleep", "60"])
    try:
        alive = note and note | {"process.pid": str(other.pid), "process.start": start_time(other.pid)}
        (tmp_path / "x.lock").write_text(json.dumps(alive) if alive else "")
        monkeypatch.setattr(lock.fcntl, "lockf", refuse)
        with pytest.raises(HeldError, match="got one by run a1" if note else "got one by a run that is just starting"):
            take(tmp_path / "x.lock")
    finally:
        other.kill()
        other.wait()


def test_a_run_that_has_just_taken_the_lock_is_named_once_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EAGAIN, "refused")

    path = tmp_path / "x.lock"
    path.touch()
    monkeypatch.setattr(lock.fcntl, "lockf", refuse)
    later = threading.Timer(0.1, path.write_text, [json.dumps(process_tags() | {"run": "a1"})])
    later.start()
    with pytest.raises(HeldError, match="got one by run a1"):
        take(path)
    later.join()


def test_a_disk_that_fails_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "no answer")

    monkeypatch.setattr(lock.fcntl, "lockf", fail)
    with pytest.raises(OSError, match="no answer"):
        take(tmp_path / "x.lock")


ALIVE = {"process.pid": str(os.getppid()), "process.start": start_time(os.getppid())}  # a process of this host that runs


@pytest.mark.parametrize(
    "note",
    [
        {"process.pid": str(os.getppid()), "process.start": "1"},  # a process number used again
        {},  # of this process, which has lost it: a container begins with the same number each time
        ALIVE | {"process.host": "another"},
        ALIVE | {"process.namespace": "pid:[1]"},
        ALIVE | {"process.boot": "earlier"},
        None,
        [],
    ],
    ids=["used again", "mine", "another host", "another container", "an earlier boot", "damaged", "a list"],
)
def test_a_note_left_behind_does_not_hold_it(tmp_path: Path, note: Any) -> None:
    """The system says that nobody has the lock: who cannot be seen from here has ended, too."""
    whole = {**process_tags(), "run": "old", "long": "x" * 2000, **note} if isinstance(note, dict) else ["a list"]
    (tmp_path / "x.lock").write_bytes(b"{\x00 half" if note is None else json.dumps(whole).encode())
    mine = take(tmp_path / "x.lock")
    assert json.loads((tmp_path / "x.lock").read_text())["run"] == "mine"
    mine.release()


def test_a_note_of_one_that_runs_here_holds_it(tmp_path: Path) -> None:
    (tmp_path / "x.lock").write_text(json.dumps({**process_tags(), **ALIVE, "run": "a1"}))
    with pytest.raises(HeldError, match="by run a1"):
        take(tmp_path / "x.lock")


def test_the_note_says_whose_it_is(tmp_path: Path) -> None:
    mine = RunLock(tmp_path / "deep/x.lock", shown="attention", remedy="b")
    mine.take(run="a1", command="kedro run", since="noon")
    try:
        expected = {"run": "a1", "command": "kedro run", "since": "noon", **process_tags()}
        assert json.loads((tmp_path / "deep/x.lock").read_text()) == expected
    finally:
        mine.release()


def test_another_path_to_the_same_file_is_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    mine = take(tmp_path / "x.lock")
    with pytest.raises(HeldError):
        take(tmp_path / "link/x.lock")
    mine.release()


def test_who_is_refused_keeps_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "x.lock").write_text(json.dumps({**process_tags(), **ALIVE, "run": "a1"}))
    before = set(os.listdir("/dev/fd"))
    with pytest.raises(HeldError):
        take(tmp_path / "x.lock")
    assert set(os.listdir("/dev/fd")) == before


def test_a_forked_child_that_cleans_up_gives_nothing_back(tmp_path: Path) -> None:
    mine = take(tmp_path / "x.lock")
    if (child := os.fork()) == 0:
        mine.release()
        with (tmp_path / "x.lock").open("r+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(HeldError, match="by run mine"):
        take(tmp_path / "x.lock", run="another")
    # Not before: closing a file gives back what this process has locked in it.
    assert json.loads((tmp_path / "x.lock").read_text())["run"] == "mine"
    mine.release()
