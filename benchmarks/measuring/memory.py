"""What a call adds to the memory of its process at its peak."""

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
    Path("/proc/self/clear_refs").write_text("5")
    held = status_mb("VmRSS")
    call()
    return status_mb("VmHWM") - held


def status_mb(name: str) -> float:
    """Return a field of /proc/self/status, MiB.

    Raises:
        OSError: where there is no such file.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name))) / 2**10
