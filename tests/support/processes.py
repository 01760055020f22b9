"""Whether processes are gone."""

import os
import subprocess
import time
from pathlib import Path

from grpo_pipeline.runs.worker import MAIN


def are_gone(pids):
    """Whether none of these is a process: not even a dead one that its parent has not waited for."""
    return not any(_exists(pid) for pid in pids)


def end_soon(pid, *, seconds=120.0):
    """Whether a process ends in time; one that was orphaned may stay in the table, dead, until who adopted it looks."""
    limit = time.monotonic() + seconds
    while _exists(pid) and not _is_dead(pid) and time.monotonic() < limit:
        time.sleep(0.02)
    return not _exists(pid) or _is_dead(pid)


def _exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_dead(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def workers_of(parent):
    """Return the processes that work for another one (``runs.worker``)."""
    table = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in table.splitlines()[1:]]
    return [int(pid) for pid, its_parent, args in rows if MAIN in args and int(its_parent) == parent]
