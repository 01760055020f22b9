"""Kedro session of the command line, which ends cleanly on Ctrl-C, SIGTERM and bad input.

What a run checks and what it gives back hang on hooks, for whichever session starts it. Kedro tells hooks of an ``Exception``
only: this session tells every hook that has ``on_run_ended`` of Ctrl-C and SIGTERM, too. Only the command line shortens errors.
"""

import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, cast

import click
from kedro.framework.session import KedroSession
from kedro.runner import SequentialRunner

from grpo_pipeline.errors import sentence
from grpo_pipeline.pipeline_registry import register_pipelines
from grpo_pipeline.runs.devices import check_devices
from grpo_pipeline.runs.parameters import tasks_of
from grpo_pipeline.runs.process import program
from grpo_pipeline.runs.runner import ReadyFirst
from grpo_pipeline.tasks import TASKS

FAILED, INTERRUPTED, TERMINATED = 1, 128 + signal.SIGINT, 128 + signal.SIGTERM
SHOW_TRACEBACK = "GRPO_TRACEBACK"
RESUME = "resume=auto"
RUNNING = ("run", "check", "report")  # commands of ours that take --params


class Terminated(SystemExit):
    """SIGTERM has arrived: what runs is unwound, ``finally`` blocks included, and the process ends with code 143."""

    def __str__(self) -> str:
        return "SIGTERM"


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise ``Terminated`` when SIGTERM arrives; signals can be handled in the main thread only, elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated(TERMINATED)

    previous = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class TrackedSession(KedroSession):
    """A session whose hooks learn how the run ended, and that ends on Ctrl-C with one line and code 130."""

    def run(
        self,
        pipeline_name: str | None = None,
        pipeline_names: list[str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Run a pipeline; see ``KedroSession.run``.

        Pipelines of several tasks run task by task, so that a task is complete, page and all, before the next one begins.

        Raises:
            SystemExit: with code 143 after SIGTERM; if the command line started the run, with code 130 after Ctrl-C and with
                code 1 after an error that one sentence explains (``GRPO_TRACEBACK=1`` leaves it as it is).
            KeyboardInterrupt: after Ctrl-C elsewhere, in a notebook for instance.
        """
        chosen = [pipeline_name] if pipeline_name else pipeline_names or []
        given = kwargs.get(RUNNER) or SequentialRunner()
        if not args and type(given) is SequentialRunner:
            kwargs[RUNNER] = ReadyFirst(is_async=given._is_async)
        self._remedy = SAME_COMMAND if any(name.endswith(GRIDS) for name in chosen) else hint()
        try:
            with sigterm_raises():
                turns = by_task(chosen)
                if (
                    len(turns) == 1
                    or args
                    or any(kwargs[name] for name in kwargs.keys() - {RUNNER})
                ):
                    return super().run(pipeline_name, pipeline_names, *args, **kwargs)
                self._check(chosen)
        except BaseException as error:
            for plugin in self._hook_manager.get_plugins():
                if callable(tell := getattr(plugin, "on_run_ended", None)):
                    tell(error)
            if isinstance(error, Terminated):
                _say("Stopped by SIGTERM", self._remedy)
            elif click.get_current_context(silent=True) is not None:
                self._end_command(error)
            raise
        found: dict[str, Any] = {}
        for names in turns:
            with self._again() as session:
                found |= cast(KedroSession, session).run(pipeline_names=names, **kwargs)
        return found

    def read_context(self) -> Any:
        """Load the context for a command of ours that needs the configuration alone.

        Raises:
            SystemExit: with code 1 after an error that one sentence explains, as ``run`` does.
        """
        try:
            return self.load_context()
        except Exception as error:
            self._end_command(error)
            raise

    def _check(self, names: Sequence[str]) -> None:
        """Refuse before the first task what only the last one would stumble on."""
        from kedro.framework.project import pipelines

        context = self.load_context()  # its hooks check all parameters
        for name in names:
            check_devices(pipelines[name], context.params)

    def _again(self) -> KedroSession:
        """Return another session with the same settings: one runs once."""
        return type(self).create(
            project_path=self._project_path,
            save_on_close=self.save_on_close,
            env=self.store.get("env"),
            runtime_params=self.store.get("runtime_params"),
            conf_source=self._conf_source,
        )

    def _end_command(self, error: BaseException) -> None:
        """End the command in few words where they suffice."""
        if isinstance(error, KeyboardInterrupt):
            _say("Stopped by Ctrl-C", self._remedy)
            raise SystemExit(INTERRUPTED) from None
        try:
            parameters = dict(self._get_config_loader()["parameters"])
        except Exception:  # noqa: BLE001 - whatever is wrong with the configuration is what is being reported
            parameters = {}
        if os.environ.get(SHOW_TRACEBACK, "0") in ("", "0") and (
            text := sentence(error, parameters=parameters)
        ):
            print(f"error: {text}  [{SHOW_TRACEBACK}=1 shows the traceback]", file=sys.stderr)
            if any(
                getattr(plugin, "has_checkpoint", False)
                for plugin in self._hook_manager.get_plugins()
            ):
                print(self._remedy, file=sys.stderr)
            raise SystemExit(FAILED) from None


def by_task(names: Sequence[str]) -> list[list[str]]:
    """Return the pipelines of each task, in the order of the project's tasks: the command line forgets that of the names.

    All of them are one where a name is no pipeline, or one of no task.
    """
    turns: dict[str, list[str]] = {task: [] for task in TASKS}
    known = register_pipelines()
    for name in names:
        tasks = tasks_of([name])
        if name not in known or len(tasks) != 1:
            return [list(names)]
        turns[tasks[0]].append(name)
    return [found for found in turns.values() if found] or [[]]


RUNNER = "runner"
GRIDS = ("compare", "cross_validate")
SAME_COMMAND = (
    "The same command goes on: finished trials are kept, and the one under way begins anew."
)
"""What to do after pipelines of many trainings, which have no use for ``resume``."""


def hint() -> str:
    """Return the sentence that says how to go on: the whole command of this process, with ``resume=auto`` added."""
    return f"`{resume_command(sys.argv)}` goes on from the last checkpoint."


def resume_command(argv: Sequence[str]) -> str:
    """Return the command that goes on with a run; that of a process that is none of ``RUNNING`` is the plain one.

    Args:
        argv: program and arguments, as ``sys.argv``.
    """
    command = next((word for word in argv[1:] if word in RUNNING), "")
    arguments = list(argv[argv.index(command) + 1 :]) if command else []
    for place, argument in enumerate(arguments):
        if argument == "--params" and place + 1 < len(arguments):
            arguments[place + 1] = with_resume(arguments[place + 1])
            break
        if argument.startswith("--params="):
            arguments[place] = "--params=" + with_resume(argument.removeprefix("--params="))
            break
    else:
        arguments += ["--params", RESUME]
    return shlex.join([*program(), command or "run", *arguments])


def with_resume(parameters: str) -> str:
    """Return the text of ``--params`` with ``resume=auto`` in the place of another value of it."""
    parts = [part for part in parameters.split(",") if part.strip()]
    return ",".join([*(part for part in parts if not re.match(r"\s*resume\s*[=:]", part)), RESUME])


def _say(what: str, remedy: str) -> None:
    print(f"\n{what}. {remedy}", file=sys.stderr)
