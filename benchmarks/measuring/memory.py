"""Measure how much memory a call adds to its process at the peak."""

import contextlib
import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any


def added_mb(call: Callable[[], Any]) -> float:
    """Return the peak of the process during a call, less what it held before, MiB; after a call that does not count.

    Raises:
        OSError: where the system cannot reset its mark of the peak.
    """
    call()
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        # Freed memory that the allocator keeps would hide what the call needs.
        ctypes.CDLL(None).malloc_trim(0)
    held = set_mark()
    call()
    return peak_since_mark_mb(held) - held


def set_mark() -> float:
    """Let the system's mark of this process's highest memory begin anew; return what is held now, MiB.

    Raises:
        OSError: where the system cannot reset its mark of the peak.
    """
    Path("/proc/self/clear_refs").write_text("5")
    return _status_mb("VmRSS")


def peak_since_mark_mb(held: float) -> float:
    """Return the highest memory since ``set_mark``, which returned ``held``, MiB.

    Linux keeps its counts of pages by processor and adds them up roughly (documented for `/proc/<pid>/status`), so its mark may
    lie below what was held when it was set; the moment of setting it counts.
    """
    return max(held, _status_mb("VmHWM"))


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name))) / 2**10
