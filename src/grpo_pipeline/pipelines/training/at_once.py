"""Train the arms of a run at once, each in another process; the bits are those of one after the other.

Kedro runs one node after the other. So each arm has two: ``make_ready`` puts down what the training needs, and ``train`` hands
on what it yields. The first of a run that trains begins those of all arms that are ready.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.training import nodes
from grpo_pipeline.runs.executor import ExecutorParams, Job, Pool
from grpo_pipeline.runs.progress import print_line
from grpo_pipeline.runs.progress_listeners import reported_to
from grpo_pipeline.runs.shared_display import SharedDisplay
from grpo_pipeline.runs.worker import UnsendableError
from grpo_pipeline.tasks.base import Task

Piece = tuple[list[nodes.Row], Checkpoint | Literal[False]]


class Training:
    """The training of an arm that may begin.

    Attributes:
        task: whose arm it is; a run is of one task.
        arm: name of the arm.
        params: where the trainings of this run are executed.
        device: that it computes on.
        steps: how many it has.
        job: the call of ``nodes.train``.
        pieces: what it has yielded and nobody has taken.
        end: None while it goes on, True when it is done, or the error that has ended it.
    """

    def __init__(
        self,
        task: str,
        arm: str,
        params: ExecutorParams,
        *,
        device: str,
        steps: int,
        arguments: tuple[Any, ...],
    ) -> None:
        """Begin nothing yet."""
        self.task, self.arm, self.params = task, arm, params
        self.device, self.steps = device, steps
        self.job = Job(arm, f"{nodes.__name__}:train", arguments)
        self.pieces: deque[Piece] = deque()
        self.end: Literal[True] | BaseException | None = None

    def put(self, piece: Piece) -> None:
        """Keep a piece until it is taken. A checkpoint takes the place of earlier ones that nobody has taken."""
        if piece[1] is not False:
            self.pieces = deque((rows, False) for rows, _ in self.pieces)
        self.pieces.append(piece)


class Trainings:
    """The trainings of a run, ready or under way."""

    def __init__(self) -> None:
        """Begin with none."""
        self._ready: list[Training] = []
        self._begun: dict[Job, Training] = {}
        self._pool: Pool | None = None
        self._shown: SharedDisplay | None = None

    def add(self, training: Training) -> None:
        """Take note of a training that may begin."""
        self._ready.append(training)

    def pieces(self, training: Training) -> Iterator[Piece]:
        """Yield what a training yields, and begin all that are ready; whatever ends this one ends all of them."""
        if self._begun and training.job not in self._begun:  # it was not ready when they began
            yield from nodes.train(*training.job.arguments)
            return
        try:
            if not self._begun:
                self._begin(training)
            yield from self._elsewhere(training) if self._pool else self._here(training)
        except BaseException:
            self.close()
            raise
        if all(one.end is True for one in self._begun.values()):
            self.close()

    def close(self) -> None:
        """End what is under way, and forget what is ready."""
        if self._pool:
            self._pool.close()
        if self._shown:
            self._shown.close()
        self._ready, self._begun, self._pool, self._shown = [], {}, None, None

    def _begin(self, training: Training) -> None:
        """Begin with this one and all that are ready beside it, at once where the parameters say so."""
        ready = self._ready if training in self._ready else [training]
        self._ready, self._begun = [], {one.job: one for one in ready}
        at_once = min(training.params.count([one.device for one in ready]), len(ready))
        self._shown = SharedDisplay(
            f"train {training.task}", {one.arm: one.steps for one in ready}, at_once=at_once
        )
        if at_once > 1:
            self._pool = Pool([*self._begun], training.params, at_once=at_once)

    def _here(self, training: Training) -> Iterator[Piece]:
        assert self._shown is not None
        pieces = nodes.train(*training.job.arguments)
        # Its loop begins before the first piece.
        with reported_to(partial(self._shown.report, training.arm)):
            first = next(pieces)
        yield first
        yield from pieces
        self._finish(training, True)

    def _elsewhere(self, training: Training) -> Iterator[Piece]:
        """Yield the pieces of one training, and keep those of the others."""
        assert self._pool is not None
        assert self._shown is not None
        while training.pieces or training.end is None:
            if training.pieces:
                yield training.pieces.popleft()
                continue
            job, kind, value = self._pool.events.get()
            if kind == "moment":
                self._shown.report(job.name, value)
            elif kind == "item":
                self._begun[job].put(value)
            else:
                self._finish(self._begun[job], True if kind == "end" else value)
        if isinstance(training.end, UnsendableError):
            print_line(f"{training.task}.{training.arm} is trained in this process: {training.end}")
            yield from self._here(training)
        elif isinstance(training.end, BaseException):
            raise training.end

    def _finish(self, training: Training, end: Literal[True] | BaseException) -> None:
        assert self._shown is not None
        training.end = end
        if end is True:
            self._shown.end(training.arm)


OF_RUN = Trainings()


def make_ready(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    resume: Literal["never", "auto"],
    executor: ExecutorParams,
    task: Task,
    data: Any,
    state: TrainState,
    resume_from: Checkpoint | NoCheckpoint,
    probe_metrics: Mapping[str, Any],
    sections: Mapping[str, str],
) -> Training:
    """Return the training of an arm, which may begin; ``executor`` says where, the rest is as of ``nodes.train``."""
    given = (algorithm, training, resume, task, data, state, resume_from, probe_metrics, sections)
    ready = Training(
        task.name,
        sections["algorithm"].split(".")[1],  # <task>.<arm>.algorithm
        executor,
        device=task.device.type,
        steps=state.total_steps,
        arguments=given,
    )
    OF_RUN.add(ready)
    return ready


def train(ready: Training) -> Iterator[Piece]:
    """Train an arm; yields the metric rows since the last yield, and now and then a checkpoint (else False)."""
    yield from OF_RUN.pieces(ready)
