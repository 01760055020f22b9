"""Measure steps that take turns in one process, and the memory of one contender in a process of its own."""

import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

from measuring.memory import peak_since_mark_mb, set_mark

from dialogue_contenders.plain_loop import PlainLoop
from dialogue_contenders.with_pipeline import Hybrid, PipelineStep
from dialogue_contenders.with_trl import TrlRun
from dialogue_contenders.workload import Workload

Seconds = dict[str, list[float]]
TRL, PLAIN, OURS, HYBRID = "TRL", "plain loop", "ours", "ours, hybrid"
# Steps before the first one that counts: the first of every contender makes room for its optimiser.
WARM_UP = 1


def make_step(name: str, workload: Workload, folder: str) -> Callable[[], int]:
    """Return the step of a contender other than TRL; it returns the number of tokens written."""
    if name == PLAIN:
        return PlainLoop(workload, folder).step
    return (
        PipelineStep(workload, folder, Hybrid).step
        if name == HYBRID
        else PipelineStep(workload, folder).step
    )


def take_turns(workload: Workload, folder: str, *, rounds: int, with_trl: bool) -> dict[str, Any]:
    """Return wall and CPU seconds of every step, and the tokens that a step wrote, by contender.

    In each round every contender takes one step; the order of ours and the plain loop turns from round to round. TRL's own
    loop runs and hands over at the end of its steps: its time is from there to the end of its next step.
    """
    steps = {name: make_step(name, workload, folder) for name in (PLAIN, OURS, HYBRID)}
    clock = _Clock()
    count = 0

    def others() -> None:
        nonlocal count
        names = list(steps)
        turned = names[count % len(names) :] + names[: count % len(names)]
        for name in turned:
            clock.start()
            tokens = steps[name]()
            clock.stop(name, tokens)
        count += 1

    if not with_trl:
        for _ in range(WARM_UP + rounds):
            others()
        return clock.found(rounds)
    run = TrlRun(workload, folder, steps=WARM_UP + rounds)

    def handed_over(tokens: int) -> None:
        clock.stop(TRL, tokens)
        others()
        clock.start()

    clock.start()
    run.train(handed_over)
    return clock.found(rounds)


def memory_of(name: str, workload: Workload, folder: str) -> dict[str, float]:
    """Return the memory of this process in MB: held before the first step (libraries, weights), and at the highest."""
    held = 0.0
    if name == TRL:
        run = TrlRun(workload, folder, steps=WARM_UP + 1)
        held = _reset_peak()
        run.train(lambda tokens: None)
    else:
        step = make_step(name, workload, folder)
        held = _reset_peak()
        for _ in range(WARM_UP + 1):
            step()
    return {"held": held, "peak": _peak_mb(held)}


class _Clock:
    def __init__(self) -> None:
        self._wall: Seconds = {}
        self._cpu: Seconds = {}
        self._tokens: dict[str, set[int]] = {}
        self._start = (0.0, 0.0)

    def start(self) -> None:
        self._start = (time.perf_counter(), time.process_time())

    def stop(self, name: str, tokens: int) -> None:
        wall, cpu = time.perf_counter() - self._start[0], time.process_time() - self._start[1]
        self._wall.setdefault(name, []).append(wall)
        self._cpu.setdefault(name, []).append(cpu)
        self._tokens.setdefault(name, set()).add(tokens)

    def found(self, rounds: int) -> dict[str, Any]:
        return {
            "wall": _last(self._wall, rounds),
            "cpu": _last(self._cpu, rounds),
            "tokens": {name: sorted(counts) for name, counts in self._tokens.items()},
        }


def _last(seconds: Mapping[str, list[float]], rounds: int) -> Seconds:
    return {name: values[-rounds:] for name, values in seconds.items()}


def _reset_peak() -> float:
    """Return the memory held now in MB, from which on the highest counts."""
    try:
        return set_mark()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _peak_mb(held: float) -> float:
    try:
        return peak_since_mark_mb(held)
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
