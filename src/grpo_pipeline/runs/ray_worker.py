"""Call functions in a process of a Ray cluster (extra ``ray``), with the interface of ``Worker``."""

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
    """The Ray actor that calls functions."""

    def __init__(self, threads: int) -> None:
        """Begin to compute with this number of threads."""
        os.environ["GRPO_PROGRESS"] = (
            "off"  # what it shows would stand between the lines of the other processes
        )
        compute_in(threads)

    def call(self, function: str, arguments: tuple[Any, ...]) -> Iterator[Any]:
        """Yield the values of a generator function, ``module:name``."""
        # Not yield from: Ray sends values into the generator, which not every iterator accepts.
        for value in resolve_name(function)(*arguments):  # noqa: UP028
            yield value


class RayWorker:
    """A process in a Ray cluster that calls generator functions, one at a time."""

    def __init__(self, address: str | None, *, threads: int, cpus: float, gpus: float) -> None:
        """Request a process with these numbers of CPUs and GPUs from the cluster, and wait until they are free."""
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
        """Yield the values of a generator function in that process; ``watch`` gets no reports.

        Raises:
            UnsendableError: if the arguments cannot be copied.
            WorkerDied: if the process, or its machine, has ended before.
            Exception: the function's own error.
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
    """Connect Ray to a cluster: that of the address, or a new one on this machine.

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
    """Count the processes with these numbers of CPUs and GPUs that fit into a cluster."""
    there = connect(address).cluster_resources()
    rooms = [there.get("CPU", 0.0) / cpus, *([there.get("GPU", 0.0) / gpus] if gpus else [])]
    return max(int(min(rooms)), 1)
