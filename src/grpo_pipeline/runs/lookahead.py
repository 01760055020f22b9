"""Run a function in threads ahead of its consumer: results keep their order, and only a few wait at a time.

Threads as a rule: what is run ahead decodes files, copies arrays and hashes, all of which release the interpreter's lock,
and nothing has to be copied between processes. Each computes by itself: where two threads both share their operations out with
OpenMP, and together want more cores than there are, GNU's library lets all that wait sleep, and every operation begins by waking
them (docs/decisions/0039).
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
    """Return the number of cores that this process may use, at most ``most``."""
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

    An exception is raised where its result would have come, with its own traceback. When the reader stops (an exception,
    Ctrl-C, ``close``), what has not begun is dropped, what has begun is waited for, and no thread stays.

    Args:
        function: called in the threads; may not depend on thread-local state (``torch.no_grad`` is one).
        items: read in the caller's thread, ``ahead`` items before the one that is asked for at most.
        workers: number of threads.
        ahead: results that are made, or being made, before they are asked for; 0 calls the function when it is asked for,
            in the caller's thread.
        processes: whether to use processes in place of threads, for what holds the interpreter's lock; function, items and
            results are copied between them.
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
    """Return ``function(item)``, computed on one core as in the threads of ``map_ahead``.

    How a sum is shared out decides how it is rounded: so a result does not depend on who makes it.
    """
    with _one_thread():
        return function(item)


def _one_thread() -> Any:
    """Share no operation of this thread out to others: at once, and until a ``with`` ends; OpenMP has a number for each."""
    torch.get_num_threads()  # at its first use in a thread, torch would set the number again
    return _controller().limit(limits=1, user_api="openmp")


@cache
def _controller() -> ThreadpoolController:
    """Find the libraries once: torch's is among them, which is loaded with this module."""
    return ThreadpoolController()
