"""Set how many threads share out one operation: the number that the run is given, never the number of cores.

How a sum is shared out decides how it is rounded, and a training carries a difference in the last bit on until other points or
words are drawn (docs/decisions/0042). So the number is a parameter of the run, ``threads``, and what the environment or the
machine says of it does not count.
"""

import ctypes
import os
from collections.abc import Iterable, Mapping
from typing import Any

from threadpoolctl import threadpool_limits

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def compute_in(threads: Any) -> None:
    """Share every operation of this process out to so many threads: torch, OpenMP and the libraries of linear algebra.

    Holds for what is loaded, for libraries that are loaded later and for processes that are started from here, both of which
    read the environment. Other threads of this process take torch's number when they begin.

    Raises:
        ValueError: if ``threads`` is no whole number above 0.
    """
    check_threads(threads)
    # OpenMP may take fewer threads than it is told to where it thinks that the cores are busy: that would be other sums.
    os.environ |= dict.fromkeys(VARIABLES, str(threads)) | {
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
    }
    import torch  # after the variables are set; the command line opens without it

    torch.set_num_threads(threads)
    threadpool_limits(threads)


def check_threads(threads: Any) -> None:
    """Raise ValueError if the parameter ``threads`` is no whole number above 0."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ValueError(
            f"threads must be a whole number of at least 1, got {threads!r}; 1 is the default"
        )


# Keep the memory that tensors on the CPU leave behind, for the tensors that come next.
#
# glibc gives freed memory back to the system: blocks above a threshold at once, and the end of the heap when much of it is
# free. A training step frees and asks for the same megabytes hundreds of times; each time the system hands out pages that it
# must first fill with zeros. Keeping them saves that, and costs that the process goes on holding what it held at its peak. On
# CUDA torch has an allocator of its own, which does the same.

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
# For the end of the heap: nothing is given back. A number of bytes must fit into a C int, 2 GiB, and a step may free more.
NEVER = -1
# The largest block that is kept; older versions of glibc refuse more than 32 MiB.
BLOCKS = (2**29, 2**25)

# With these a user has decided already: about glibc, or for another allocator.
DECIDED_BY = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Let this process keep the free memory of its heap; single blocks above 512 MiB are given back.

    For the whole process, and for good. Nothing changes where the environment has set how memory is allocated (an empty
    ``GLIBC_TUNABLES=`` is enough), nor on a system without glibc.

    Args:
        environ: the environment variables.

    Returns:
        Whether it was set.
    """
    if any(name in environ for name in DECIDED_BY):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (
        AttributeError,
        OSError,
        TypeError,
    ):  # another C library; no handle on the process itself
        return False
    return any(mallopt(M_MMAP_THRESHOLD, size) for size in BLOCKS) and bool(
        mallopt(M_TRIM_THRESHOLD, NEVER)
    )


# Say by name, while a run is still going, which coefficient of a loss does nothing.

PREFIX = "dead/"
# A coefficient can be silent for one batch: the KL at the reference itself, the entropy of a uniform policy.
PATIENCE = 2


class DeadCoefficients:
    """Count how often in a row each coefficient had exactly no effect, and say so once."""

    def __init__(self) -> None:
        self._silent: dict[str, int] = {}

    def read(self, arm: str, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return one sentence for each coefficient that these metric rows show to be dead for the second time in a row."""
        found = []
        for row in rows:
            for metric in (name for name in row if name.startswith(PREFIX)):
                name = metric.removeprefix(PREFIX)
                count = self._silent.get(f"{arm}/{name}", 0) + 1 if row[metric] == 1.0 else 0
                self._silent[f"{arm}/{name}"] = count
                if count == PATIENCE:
                    found.append(describe(arm, name, int(row["step"])))
        return found


def describe(arm: str, name: str, step: int) -> str:
    """Return what is dead and what to do, in one sentence."""
    if name.startswith("reward_"):
        part = name.removeprefix("reward_")
        return (
            f"{arm}: the reward component '{part}' is the same for all samples of every group at step {step} and cancels in the "
            "advantages; make it differ between samples of one prompt, or set its weight to 0"
        )
    return (
        f"{arm}: the coefficient of '{name}' is not 0, but its gradient is exactly 0 at step {step}; find the detach, or set "
        "it to 0"
    )
