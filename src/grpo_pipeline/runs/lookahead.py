"""Run a function in threads ahead of its consumer: results keep their order, and only a few wait at a time.

Threads are the rule: reading files, copying arrays and hashing release the interpreter's lock, and nothing is copied between
processes. Each thread computes on a single core. If several threads used OpenMP with more threads than cores, GNU's library would
put waiting threads to sleep. Each operation would begin by waking them (docs/decisions/0039).
"""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import torch
from threadpoolctl import ThreadpoolController

T = TypeVar("T")
R = TypeVar("R")

MOST_WORKERS = 8
THREAD_NAME = "grpo-ahead"


def usable_cores(most: int = MOST_WORKERS) -> int:
    """Count the cores that this process may use, at most ``most``."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(cores, most))


def map_ahead(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    ahead: int,
    processes: bool = False,
) -> Generator[R, None, None]:
    """Yield ``function(item)`` for every item, in the order of the items.

    An exception is raised in the place of its result, with its own traceback. When the consumer stops (an exception, Ctrl-C,
    ``close``), waiting items are dropped, running ones are finished, and no thread stays.

    Args:
        function: called in the threads; may not depend on thread-local state (``torch.no_grad`` is one).
        items: read in the caller's thread, at most ``ahead`` items before the requested one.
        workers: number of threads.
        ahead: number of results that are computed before they are requested; 0 calls the function on request, in the caller's
            thread.
        processes: whether to use processes in place of threads, for a function that holds the interpreter's lock. Function, items
            and results are then copied.
    """
    if ahead < 1:
        yield from (alone(function, item) for item in items)
        return
    remaining = iter(items)
    pool: Executor = ThreadPoolExecutor(
        workers, thread_name_prefix=THREAD_NAME, initializer=_one_thread
    )
    if processes:
        pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    with pool:
        waiting: deque[Future[R]] = deque(
            pool.submit(function, item) for item in islice(remaining, ahead)
        )
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(function, item) for item in islice(remaining, 1))
                yield result
        finally:
            for future in waiting:
                future.cancel()


def alone(function: Callable[[T], R], item: T) -> R:
    """Compute ``function(item)`` on a single core, as in the threads of ``map_ahead``.

    The split of a sum decides its rounding, so a result must not depend on the thread that computes it.
    """
    with _one_thread():
        return function(item)


def _one_thread() -> Any:
    """Restrict operations of this thread to a single core, at once or until a ``with`` ends; OpenMP's setting is per thread."""
    torch.get_num_threads()  # at its first use in a thread, torch would set the number again
    return _controller().limit(limits=1, user_api="openmp")


@cache
def _controller() -> ThreadpoolController:
    """Find the libraries once: torch's is among them, which is loaded with this module."""
    return ThreadpoolController()
