"""How much of the time are the matrix products? By the profiler, and by the products alone.

The profiler writes down every operation, and what it costs to do so counts as time between the products: its share is too
small by that. The products alone are those of one call, on matrices of the same shapes and strides that the caches do not
hold: their CPU seconds over those of the call without a profiler.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from measuring.spread import spread
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
NAMES = tuple(f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "addmm_"))


def profiled_share(call: Callable[[], Any]) -> float:
    """Return the products' own time over the own time of all operations."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    events = found.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    return sum(event.self_cpu_time_total for event in events if event.key in NAMES) / total


def shares_alone(call: Callable[[], Any], rounds: int) -> list[float]:
    """Return the CPU seconds of the products alone over those of the call, one share for each round."""
    with Recorder() as recorder:
        call()
    replay = recorder.replay()
    return [_cpu_seconds(replay) / _cpu_seconds(call) for _ in range(rounds)]


def median_share(call: Callable[[], Any], rounds: int) -> dict[str, Any]:
    """Return both shares with their spread."""
    return {
        "profiler": asdict(spread([profiled_share(call) for _ in range(rounds)])),
        "alone": asdict(spread(shares_alone(call, rounds))),
    }


@dataclass(frozen=True)
class Layout:
    """Of a matrix: shape and strides."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def filled(self) -> Tensor:
        """Return such a matrix with numbers of size 1 at most."""
        return torch.empty_strided(self.shape, self.strides).uniform_(-1, 1)


class Recorder(TorchDispatchMode):
    """Inside of it every product is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, tuple[Layout, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS:
            self.found.append((func, tuple(Layout(tuple(x.shape), x.stride()) for x in args)))
        return func(*args, **(kwargs or {}))

    def replay(self) -> Callable[[], None]:
        """Return a call that computes all products again; products of the same shapes share one of several sets of matrices."""
        matrices = _Matrices()
        work = [(func, matrices.of(layouts)) for func, layouts in self.found]

        def run() -> None:
            for func, inputs in work:
                func(*inputs)

        return run


class _Matrices:
    """Sets of matrices for each combination of shapes, used in turn, so that none is still in a cache."""

    SETS = 4

    def __init__(self) -> None:
        self._sets: dict[tuple[Layout, ...], list[tuple[Tensor, ...]]] = {}
        self._turn = 0

    def of(self, layouts: tuple[Layout, ...]) -> tuple[Tensor, ...]:
        if layouts not in self._sets:
            self._sets[layouts] = [
                tuple(layout.filled() for layout in layouts) for _ in range(self.SETS)
            ]
        self._turn += 1
        return self._sets[layouts][self._turn % self.SETS]


def _cpu_seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start
