"""Keep the memory that tensors on the CPU leave behind, for the tensors that come next.

glibc gives freed memory back to the system: blocks above a threshold at once, and the end of the heap when much of it is free. A
training step frees and asks for the same megabytes hundreds of times; each time the system hands out pages that it must first
fill with zeros. Keeping them saves that, and costs that the process goes on holding what it held at its peak. On CUDA torch has
an allocator of its own, which does the same.
"""

import ctypes
import os
from collections.abc import Mapping

# Of malloc.h, and the largest threshold that every version of glibc takes.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_MMAP_THRESHOLD = 32 * 2**20
KEPT = 2**30

# With these a user has decided already: about glibc, or for another allocator.
DECIDED_BY = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Let this process keep up to 1 GiB of free memory at the end of its heap; blocks above 32 MiB go back to the system as ever.

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
    except (AttributeError, OSError, TypeError):  # another C library; no handle on the process itself
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT))
