"""Find the tasks: the folders here with a module ``spec``, and installed packages with an entry point."""

from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files

from grpo_pipeline.tasks.spec import TaskSpec

# Name -> module whose ``SPEC`` describes the task. A pipeline's name without a task means the first task.
# Resources and no paths: an exported model carries this package as an archive.
BUILT_IN = {
    name: f"{__name__}.{name}.spec"
    for name in sorted(
        folder.name for folder in files(__name__).iterdir() if (folder / "spec.py").is_file()
    )
}
GROUP = "grpo_pipeline.tasks"


def known_tasks() -> dict[str, str]:
    """List the tasks of the project, then those of installed packages (entry points ``grpo_pipeline.tasks``).

    Raises:
        ValueError: if two tasks have the same name.
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
