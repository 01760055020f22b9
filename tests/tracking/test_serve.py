"""The server of `make mlflow` ends with the command, whatever ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# A server with a worker, which names both and waits; the worker does not hear of SIGTERM by itself.
SERVER = (
    "import os, pathlib, subprocess, sys\n"
    "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "file = pathlib.Path('new')\n"
    "file.write_text(f'{os.getpid()} {worker.pid}')\n"
    "file.rename('ids')\n"
    "worker.wait()\n"
)
COMMAND = "import sys; from grpo_pipeline.tracking.store_page import serve; sys.exit(serve([sys.executable, '-c', sys.argv[1]]))"


def is_alive(process: int) -> bool:
    """Say whether a process runs; one that has ended and was not waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_signal_to_the_command_ends_the_server_and_its_workers(tmp_path: Path, number: int, code: int) -> None:
    command = subprocess.Popen([sys.executable, "-c", COMMAND, SERVER], cwd=tmp_path)
    ids = tmp_path / "ids"
    deadline = time.monotonic() + 240
    while not ids.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    started = [int(name) for name in ids.read_text().split()]
    assert [is_alive(process) for process in started] == [True, True]
    os.kill(command.pid, number)
    assert command.wait(timeout=240) == code
    deadline = time.monotonic() + 60
    while any(map(is_alive, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [is_alive(process) for process in started] == [False, False]


def test_the_status_of_a_server_that_ends_by_itself_is_passed_on(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND, "raise SystemExit(3)"], cwd=tmp_path, check=False)
    assert done.returncode == 3
