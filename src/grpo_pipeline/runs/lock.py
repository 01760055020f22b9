"""Lock a folder of results for a run; a second run ends at once and names the first.

The system's lock of a file decides (POSIX ``lockf``). A single process gets it even if two start at the same instant. It ends
with the process, however that ends, and child processes do not inherit it. The content of the file names the owner; it decides
only in a file system without locks.
"""

import errno
import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from grpo_pipeline.runs.process import is_gone, process_tags

logger = logging.getLogger(__name__)

Owner = Mapping[str, str]
SAID = ("run", "since", "command", "process.pid", "process.host")
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
NOTE_SECONDS = 1.0  # that another process may take from its lock to its note
_held: dict[Path, Owner] = {}  # by this process: the system lets a process lock a file twice
_guard = threading.Lock()


class HeldError(RuntimeError):
    """Another run writes the same folder."""


class RunLock:
    """The lock of a folder of results.

    Args:
        path: file of the lock. It stays after the release: processes that wait for a removed file could lock different files.
        shown: the folder's name in messages.
        remedy: how to give a run another folder.
    """

    def __init__(self, path: Path, *, shown: str, remedy: str) -> None:
        self._path, self._shown, self._remedy = path.resolve(), shown, remedy
        self._descriptor: int | None = None
        self._pid = 0

    def take(self, *, run: str, command: str, since: str) -> None:
        """Take the lock for this process.

        Raises:
            HeldError: if another run has it. The lock of a killed run is taken over, and the log names that run.
        """
        with _guard:
            if self._path in _held:
                raise HeldError(self._sentence(_held[self._path]))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Opened once, for as long as the lock is held: closing any descriptor of the file would release it.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                owner = {"run": run, "command": command, "since": since, **process_tags()}
                is_locked = _lock(descriptor)
                before = _note(descriptor, seconds=0.0 if is_locked else NOTE_SECONDS)
                if not is_locked or (before and not _has_ended(before)):
                    raise HeldError(self._sentence(before))
                if before:
                    logger.warning(
                        "The run %s (process %s, since %s) ended without a word; its folder %s is taken over",
                        *(before.get(key, "?") for key in ("run", "process.pid", "since")),
                        self._shown,
                    )
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(owner, indent=1).encode(), 0)
            except BaseException:
                os.close(descriptor)
                raise
            _held[self._path] = owner
            self._descriptor, self._pid = descriptor, os.getpid()

    def release(self) -> None:
        """Release the lock; a second call, and a call in a forked process, does nothing."""
        if self._descriptor is None or self._pid != os.getpid():
            return
        with _guard:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
            _held.pop(self._path, None)

    def _sentence(self, owner: Owner) -> str:
        if owner:
            run, since, command, pid, host = (owner.get(key, "?") for key in SAID)
            who, stop = (
                f"run {run} (process {pid} on {host}, since {since}: {command})",
                f"stop it (kill {pid})",
            )
        else:
            who, stop = "a run that is just starting", "stop it"
        return (
            f"the results folder '{self._shown}' must have one run at a time, got one by {who}; wait for it, {stop}, or give "
            f"this run a folder of its own: {self._remedy}"
        )


def _lock(descriptor: int) -> bool:
    """Take the system's lock; False if another process has it. In a file system without locks, the content decides."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno not in NO_LOCKS:
            raise
    return True


def _has_ended(owner: Owner) -> bool:
    """Check whether the owner named in an unlocked file has ended.

    An owner on another host or container counts as ended: it would hold the system's lock.
    """
    here = process_tags()
    if any(owner.get(key) != here[key] for key in ("process.host", "process.namespace")):
        return True
    return owner.get("process.pid") == here["process.pid"] or is_gone(owner, is_local_store=True)


def _note(descriptor: int, *, seconds: float) -> Owner:
    """Read the holder of the file; a run that has just taken it gets some seconds to write its name."""
    deadline = time.monotonic() + seconds
    while not (owner := _parse(os.pread(descriptor, 1 << 16, 0))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return owner


def _parse(content: bytes) -> Owner:
    try:
        owner = json.loads(content or "{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}
