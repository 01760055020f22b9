"""Set the number of threads of an operation from the run's parameters, never from the number of cores.

The split of a sum decides its rounding. A training amplifies a difference in the last bit until it draws other points or words
(docs/decisions/0042). So the number is a parameter of the run, ``threads``; the environment and the machine do not change it.
"""

import os
from typing import Any

from threadpoolctl import threadpool_limits

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def compute_in(threads: Any) -> None:
    """Set the number of threads of this process for torch, OpenMP and the libraries of linear algebra.

    Holds for what is loaded, for libraries that are loaded later and for processes that are started from here, both of which
    read the environment. Other threads of this process take torch's number when they begin.

    Raises:
        ValueError: if ``threads`` is no whole number above 0.
    """
    check_threads(threads)
    # OpenMP may use fewer threads than set if it finds the cores busy, which would change the rounding of sums.
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
