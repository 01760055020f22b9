"""A process of a Ray cluster that does work for this one (extra ``ray``); it is asked as a ``Worker`` is."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from grpo_pipeline.runs.threads import VARIABLES, compute_in
from grpo_pipeline.runs.worker import UnsendableError, WorkerDied


class Calls:
    """The actor: calls what it is asked for."""

    def __init__(self, threads: int) -> None:
        """Begin to compute with so many threads."""
        os.environ["GRPO_PROGRESS"] = (
            "off"  # what it shows would stand between the lines of the other processes
        )
        compute_in(threads)

    def call(self, function: str, arguments: tuple[Any, ...]) -> Iterator[Any]:
        """Yield what a generator function, ``module:name``, yields."""
        # Not yield from: Ray sends values into what it iterates, which not every iterator takes.
        for value in resolve_name(function)(*arguments):  # noqa: UP028
            yield value


class RayWorker:
    """A process somewhere in a Ray cluster that calls functions which yield; one function at a time."""

    def __init__(self, address: str | None, *, threads: int, cpus: float, gpus: float) -> None:
        """Ask the cluster for a process with so many CPUs and GPUs; this waits as long as all are taken."""
        self._ray = connect(address)
        places = os.pathsep.join(path or os.getcwd() for path in sys.path)
        variables = dict.fromkeys(VARIABLES, str(threads)) | {"PYTHONPATH": places}
        actor = self._ray.remote(Calls).options(
            num_cpus=cpus, num_gpus=gpus, runtime_env={"env_vars": variables}
        )
        self._actor = actor.remote(threads)

    def results(
        self, function: str, *arguments: Any, watch: Callable[[Any], None]
    ) -> Iterator[Any]:
        """Yield what a generator function yields there; ``watch`` is told nothing.

        Raises:
            UnsendableError: if the arguments cannot be copied.
            WorkerDied: if the process, or its machine, has ended before that.
            Exception: which the function has raised.
        """
        errors = self._ray.exceptions
        try:
            call = self._actor.call.options(num_returns="streaming")
            try:
                values = call.remote(function, arguments)
            except TypeError as error:
                raise UnsendableError(f"it cannot be copied into another one ({error})") from error
            for value in values:
                yield self._ray.get(value)
        except errors.RayActorError as error:
            raise WorkerDied(None) from error
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error

    def close(self) -> None:
        """End the process."""
        self._ray.kill(self._actor)


def connect(address: str | None) -> Any:
    """Return Ray, connected to a cluster: that of the address, or one of this machine's own.

    Raises:
        ValueError: if Ray is not installed.
    """
    if find_spec("ray") is None:
        raise ValueError(
            "executor.kind must be serial or processes where Ray is not installed, got ray; pip install 'grpo-pipeline[ray]'"
        )
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    if not ray.is_initialized():
        ray.init(
            address=address,
            include_dashboard=None if address else False,
            logging_level=logging.WARNING,
            log_to_driver=True,
        )
    return ray


def count_slots(address: str | None, *, cpus: float, gpus: float) -> int:
    """Return how many processes with so many CPUs and GPUs a cluster has room for."""
    there = connect(address).cluster_resources()
    rooms = [there.get("CPU", 0.0) / cpus, *([there.get("GPU", 0.0) / gpus] if gpus else [])]
    return max(int(min(rooms)), 1)
