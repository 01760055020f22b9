"""Identify this process, so that its death can be detected, and write the command that started it."""

import functools
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def command_line(argv: Sequence[str]) -> str:
    """Write the command in the form to type again: ``kedro run …`` for Kedro's entry points."""
    first = Path(argv[0]) if argv and argv[0] else Path("python")
    is_kedro = first.name in ("kedro", "python -m kedro") or first.parts[-2:] == (
        "kedro",
        "__main__.py",
    )
    return shlex.join(["kedro" if is_kedro else first.name, *argv[1:]])


def program() -> list[str]:
    """Write how to start this process's Kedro from a new shell in the current folder, without an activated environment."""
    script, here = Path(sys.executable).with_name("kedro"), Path.cwd()
    if not script.is_file():
        return [sys.executable, "-m", "kedro"]
    return [str(script.relative_to(here) if script.is_relative_to(here) else script)]


def process_tags() -> dict[str, str]:
    """Collect tags that identify this process uniquely: host, boot, process namespace, id and start time."""
    pid = os.getpid()
    return {
        **machine_tags(),
        "process.pid": str(pid),
        "process.start": start_time(pid) or "unknown",
    }


@functools.cache
def machine_tags() -> dict[str, str]:
    """Collect tags of the scope of process ids: the host, and on Linux its boot and the container's namespace."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    return {
        "process.host": socket.gethostname(),
        "process.boot": boot.read_text().strip() if boot.is_file() else "unknown",
        "process.namespace": os.readlink(namespace) if namespace.is_symlink() else "unknown",
    }


def start_time(pid: int) -> str | None:
    """Read the start time of a process in the system's format; None if there is no such process."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").is_file():
        try:
            # The name in parentheses may hold spaces; field 22 of the line is the 20th after it.
            return stat.read_text().rpartition(")")[2].split()[19]
        except OSError:
            return None
    done = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def is_gone(tags: Mapping[str, str], *, is_local_store: bool) -> bool:
    """Check whether the process that ``process_tags`` described has certainly ended.

    A process of another host or container cannot be seen from here, and is assumed to run. A process of an earlier boot has ended
    if the store is local: hosts that share a server may share their name, too.
    """
    here = machine_tags()
    if tags.get("process.host") != here["process.host"]:
        return False
    if tags.get("process.boot") != here["process.boot"]:
        return is_local_store
    if tags.get("process.namespace") != here["process.namespace"]:
        return False
    return start_time(int(tags["process.pid"])) != tags.get("process.start")
