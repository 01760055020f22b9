"""Find the tasks: a folder here with a module ``spec`` is one, and so is an installed package with an entry point."""

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from grpo_pipeline.tasks.spec import TaskSpec

# Name -> module whose ``SPEC`` describes the task. The first one is meant where a pipeline's name names no task.
BUILT_IN = {
    file.parent.name: f"{__name__}.{file.parent.name}.spec"
    for file in sorted(Path(__file__).parent.glob("*/spec.py"))
}
GROUP = "grpo_pipeline.tasks"


def known_tasks() -> dict[str, str]:
    """Return the tasks of the project, then those that installed packages bring by entry points ``grpo_pipeline.tasks``.

    Raises:
        ValueError: if two tasks have one name.
    """
    found = dict(BUILT_IN)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if found.get(entry.name, entry.value) != entry.value:
            raise ValueError(
                f"tasks must differ in their names, got {entry.name!r} again from {entry.value}; rename the entry point"
            )
        found[entry.name] = entry.value
    return found


TASKS = known_tasks()


def find_task(name: str) -> TaskSpec:
    """Return the spec of a task.

    Raises:
        ValueError: if no task has this name.
    """
    if name not in TASKS:
        raise ValueError(
            f"a task must be one of {', '.join(TASKS)}, got {name!r}; correct the name"
        )
    spec: TaskSpec = import_module(TASKS[name]).SPEC
    return spec
