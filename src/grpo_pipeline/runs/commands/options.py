"""Define the options that several commands share, in Kedro's words, and open a session as ``kedro run`` does."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from kedro.framework.cli.project import run as kedro_run
from kedro.framework.project import settings
from kedro.utils import find_kedro_project

from grpo_pipeline.tasks import TASKS

Command = TypeVar("Command", bound=Callable[..., Any])
TASK_HELP = f"Task: {', '.join(TASKS)}."


def task_option() -> Callable[[Command], Command]:
    """Make the option ``--task``, whose value must be the name of a task."""
    return click.option("--task", required=True, callback=check_task, help=TASK_HELP)


def kedro_option(name: str) -> Callable[[Command], Command]:
    """Take an option of ``kedro run``."""
    [option] = [param for param in kedro_run.params if param.name == name]

    def add(command: Command) -> Command:
        given: Any = command  # click collects the options of a function in this attribute
        given.__click_params__ = [*getattr(command, "__click_params__", []), option]
        return command

    return add


def open_session(env: str | None, params: dict[str, Any] | None = None) -> Any:
    """Open a session of the project as a context manager.

    Raises:
        click.UsageError: if the current folder lies in no project.
    """
    find_project()
    return settings.SESSION_CLASS.create(env=env, runtime_params=params)


def run_pipelines(names: Sequence[str], env: str | None, params: dict[str, Any]) -> dict[str, Any]:
    """Run pipelines as ``kedro run`` does; returns what no other node reads."""
    with open_session(env, params) as session:
        found: dict[str, Any] = session.run(pipeline_names=[*names])
    return found


def find_project() -> Path:
    """Find the project around the current folder.

    Raises:
        click.UsageError: if there is none.
    """
    project = find_kedro_project(Path.cwd())
    if project is None:
        raise click.UsageError(
            f"the current folder must lie in a project, got {Path.cwd()}; make one here: grpo init"
        )
    return Path(project)


def check_task(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse a name that is no task's."""
    if value is not None and value not in TASKS:
        raise click.UsageError(
            f"--task must be one of {', '.join(TASKS)}, got {value!r}; correct it"
        )
    return value


def key_values(texts: Sequence[str], form: str, example: str) -> list[tuple[str, str]]:
    """Cut the values of an option in two at their "=".

    Args:
        texts: the values.
        form: option and form, ``--column KEY=COLUMN``.
        example: a right value.

    Raises:
        click.UsageError: if a value has no "=".
    """
    option, _, wanted = form.partition(" ")
    if wrong := [text for text in texts if "=" not in text]:
        raise click.UsageError(f"{option} must be {wanted}, got {wrong[0]}; write {example}, say")
    return [(key, value) for key, _, value in (text.partition("=") for text in texts)]
