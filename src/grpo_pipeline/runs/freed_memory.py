"""Keep the memory that tensors on the CPU leave behind, for the tensors that come next.

glibc gives freed memory back to the system: blocks above a threshold at once, and the end of the heap when much of it is
free. A training step frees and asks for the same megabytes hundreds of times; each time the system hands out pages that it
must first fill with zeros. Keeping them saves that, and costs that the process goes on holding what it held at its peak. On
CUDA torch has an allocator of its own, which does the same.
"""

import ctypes
import os
from collections.abc import Mapping

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
