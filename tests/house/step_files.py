"""Run a Kedro command and write the project's files that one training step executes, of the step that executes most.

    python tests/house/step_files.py FILES.json run --env smoke --pipelines attention

A step is one call of a public method (state, batch, ...) of a class in pipelines/training, whatever their names. Only the first
calls of each loop are followed: they are slow under a profiler, and all alike.
"""

import atexit
import functools
import importlib
import inspect
import json
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "grpo_pipeline"
FOLLOWED = 3


class Recorder:
    """Follows the calls inside the outermost step and keeps the largest set of files."""

    def __init__(self) -> None:
        self.widest: set[str] = set()
        self._calls: Counter[int] = Counter()
        self._is_inside = False

    def wrap(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``step`` with its first calls on each object followed."""

        @functools.wraps(step)
        def followed(loop: Any, *arguments: Any, **named: Any) -> Any:
            self._calls[id(loop)] += 1
            if self._is_inside or self._calls[id(loop)] > FOLLOWED:
                return step(loop, *arguments, **named)
            files: set[str] = set()
            self._is_inside = True
            sys.setprofile(functools.partial(note, files))
            try:
                return step(loop, *arguments, **named)
            finally:
                sys.setprofile(None)
                self._is_inside = False
                self.widest = max(self.widest, files, key=len)

        return followed


def note(files: set[str], frame: FrameType, event: str, _: Any) -> None:
    """Add the file of a called function; importing a module executes no function of the step."""
    place, _, inside = frame.f_code.co_filename.partition(f"/src/{PACKAGE}/")
    if event == "call" and inside and place and frame.f_code.co_name != "<module>":
        files.add(inside)


def steps() -> Iterator[tuple[type, str]]:
    """Yield (class, method) of every training step: methods whose arguments begin with ``state, batch``."""
    package = importlib.import_module(f"{PACKAGE}.pipelines.training")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for _, owner in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            for name, method in inspect.getmembers(owner, inspect.isfunction):
                if owner.__module__ == module.name and list(inspect.signature(method).parameters)[1:3] == ["state", "batch"]:
                    yield owner, name


def main() -> None:
    """Wrap the steps, run Kedro, and write the files when the process ends."""
    target, *arguments = sys.argv[1:]
    recorder, found = Recorder(), list(steps())
    if not found:
        raise LookupError(
            f"{PACKAGE}.pipelines.training must have a class with a method (state, batch, ...), got none; describe it in steps()"
        )
    for owner, name in found:
        setattr(owner, name, recorder.wrap(getattr(owner, name)))
    atexit.register(lambda: Path(target).write_text(json.dumps(sorted(recorder.widest)), encoding="utf-8"))
    from kedro.framework.cli.cli import main as kedro

    sys.argv = ["kedro", *arguments]
    kedro()


if __name__ == "__main__":
    main()
