"""Execute trainings: one by one in this process, several at once in other processes, or on a Ray cluster."""

import os
import threading
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field

from grpo_pipeline.runs.lookahead import usable_cores
from grpo_pipeline.runs.ray_worker import RayWorker, count_slots
from grpo_pipeline.runs.worker import Worker, WorkerDied

TRIES = 2  # of a job whose process died
PATIENCE_SECONDS = 30.0  # with a process that is ended


class ExecutorParams(BaseModel):
    """How the arms of a run, and the trials of a comparison or cross-validation, are executed.

    No result depends on it: the bits are the same with each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["serial", "processes", "ray"] = Field(
        description="`serial`: one after the other in this process; `processes`: several at once, each in a process of its "
        "own; `ray`: several at once on a Ray cluster (extra `ray`)"
    )
    workers: int | None = Field(
        ge=1,
        description="how many at once; null: one a core, one alone on a GPU, with `ray` as many as the cluster has room for",
    )
    address: str | None = Field(description="of a Ray cluster; null starts one on this machine")
    cpus: float = Field(gt=0, description="that Ray sets aside for each")
    gpus: float = Field(ge=0, description="that Ray sets aside for each")

    def count(self, devices: Iterable[str]) -> int:
        """Count the trainings that run at once on these devices (``training.device``)."""
        if self.kind == "ray":
            return self.workers or count_slots(self.address, cpus=self.cpus, gpus=self.gpus)
        if (
            self.kind == "serial" or os.name == "nt"
        ):  # no open file is handed to a process there as it is here
            return 1
        if self.workers is not None:
            return self.workers
        has_cuda = torch.cuda.is_available()
        if any(name.startswith("cuda") or (name == "auto" and has_cuda) for name in devices):
            return 1
        return max(usable_cores() // torch.get_num_threads(), 1)

    def open(self) -> Worker | RayWorker:
        """Start a process that computes in the same way as this one."""
        threads = torch.get_num_threads()
        if self.kind == "ray":
            return RayWorker(self.address, threads=threads, cpus=self.cpus, gpus=self.gpus)
        return Worker(threads=threads)


@dataclass(frozen=True, eq=False)
class Job:
    """A call of a generator function, in another process.

    Attributes:
        name: for people.
        function: ``module:name``.
        arguments: of the call; they are copied.
        start: jobs with the same one share what a process remembers; they go to the same one, as long as none would wait.
    """

    name: str
    function: str
    arguments: tuple[Any, ...]
    start: Hashable = None


class Event(NamedTuple):
    """An event of a job: it yields an ``item``, reports a ``moment`` of progress, or comes to its ``end`` or an ``error``."""

    job: Job
    kind: Literal["moment", "item", "end", "error"]
    value: Any = None


class Pool:
    """Processes that do jobs; a thread of this process follows each. A job whose process dies is tried again once.

    Attributes:
        events: what happens, as it happens.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        params: ExecutorParams,
        *,
        at_once: int,
        first: Job | None = None,
    ) -> None:
        """Begin with the jobs; each process does the job ``first`` before all others, without events."""
        self.events: SimpleQueue[Event] = SimpleQueue()
        self._to_do, self._params, self._first = [*jobs], params, first
        self._lock, self._is_closed = threading.Lock(), False
        self._workers: list[Worker | RayWorker] = []
        self._starts: dict[int, set[Hashable]] = {}
        numbers = range(min(at_once, len(jobs)))
        self._starts |= {number: set() for number in numbers}
        self._threads = [
            threading.Thread(target=self._follow, args=(number,), daemon=True) for number in numbers
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End all processes and wait for that; no more events follow."""
        with self._lock:
            self._is_closed = True
            self._to_do.clear()
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()
        for thread in self._threads:  # one may have begun a process meanwhile, and ends it
            thread.join(PATIENCE_SECONDS)

    def _follow(self, number: int) -> None:
        """Give a process the jobs one by one, and start a new process for one that has died."""
        worker: Worker | RayWorker | None = None
        while (job := self._next(number)) is not None:
            given = 0
            for attempt in range(1, TRIES + 1):
                if self._is_closed:  # who died over it was ended
                    return
                done = 0
                try:
                    worker = worker or self._open()
                    for value in worker.results(
                        job.function, *job.arguments, watch=partial(self._tell, job, "moment")
                    ):
                        done += 1
                        if done > given:  # else a first try has yielded it
                            given = done
                            self._tell(job, "item", value)
                    self._tell(job, "end")
                    break
                except WorkerDied as error:
                    worker = None
                    if attempt == TRIES:
                        self._tell(job, "error", twice(error))
                except BaseException as error:  # noqa: BLE001 - whoever waits for the job must hear of it
                    self._tell(job, "error", error)
                    break
        if worker is not None:
            worker.close()

    def _open(self) -> Worker | RayWorker:
        worker = self._params.open()
        with self._lock:
            self._workers.append(worker)
            is_closed = self._is_closed
        if is_closed:
            worker.close()
            raise WorkerDied(None)
        if self._first is not None:
            for _ in worker.results(self._first.function, *self._first.arguments, watch=_ignore):
                pass
        return worker

    def _next(self, number: int) -> Job | None:
        """Choose the next job for a process: with a start that the process knows, else with an unused start, else any."""
        with self._lock:
            if not self._to_do:
                return None
            known = self._starts[number]
            elsewhere = {
                start
                for other, starts in self._starts.items()
                if other != number
                for start in starts
            }
            same = [job for job in self._to_do if job.start in known]
            new = [job for job in self._to_do if job.start not in elsewhere]
            job = next(iter((*same, *new, *self._to_do)))
            self._to_do.remove(job)
            known.add(job.start)
            return job

    def _tell(self, job: Job, kind: Any, value: Any = None) -> None:
        if not self._is_closed:
            self.events.put(Event(job, kind, value))


def twice(error: WorkerDied) -> RuntimeError:
    """Build the error of a job whose processes have died repeatedly."""
    return RuntimeError(f"{error}, twice; where memory is short, take fewer executor.workers")


def _ignore(_: Any) -> None:
    pass
