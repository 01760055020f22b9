"""Check that the parameters and the catalogue name the same data folder."""

from pathlib import Path, PurePath


def check_root(found: Path, configured: str, *, task: str) -> None:
    """Refuse a data folder other than the parameters'.

    Args:
        found: the folder that was read.
        configured: ``<task>.data.root``.
        task: name of the task, for the message.

    Raises:
        ValueError: if they are different folders.
    """
    named = tuple(part for part in PurePath(configured).parts if part not in ("..", "."))
    if (
        found.parts[len(found.parts) - len(named) :] != named
        and found.resolve() != Path(configured).resolve()
    ):
        raise ValueError(
            f"{task}.data.root must be the folder of the dataset {task}.raw, {found}, got {configured!r}; "
            f"set {task}_root in globals.yml, which both read"
        )
