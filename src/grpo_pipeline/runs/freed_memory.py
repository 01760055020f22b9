"""Keep freed memory of CPU tensors for the next tensors.

glibc returns freed memory to the system: blocks above a threshold at once, and the end of the heap when much of it is free. A
training step frees and requests the same megabytes hundreds of times, and the system fills each page with zeros again. Keeping
the memory saves that, at the cost that the process stays as large as at its peak. On CUDA, torch has an allocator that does the
same.
"""

import ctypes
import os
from collections.abc import Mapping

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h

# The end of the heap is never returned. A limit must fit into a C int, 2 GiB, and a step may free more.
NEVER = -1

# The largest block that is kept; older versions of glibc refuse more than 32 MiB.
BLOCKS = (2**29, 2**25)

# A user who has set these has configured glibc, or chosen another allocator.
DECIDED_BY = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Make this process keep the free memory of its heap; single blocks above 512 MiB are still returned.

    This holds for the whole process until its end. Nothing changes if the environment configures the allocator (an empty
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
