"""Check that the parameters and the catalogue name the same data folder."""

from pathlib import Path, PurePath


def check_root(found: Path, configured: str, *, section: str, variable: str) -> None:
    """Refuse a data folder other than the parameters'.

    Args:
        found: the folder that was read.
        configured: the data folder in the parameters.
        section: section of the parameters.
        variable: variable of globals.yml, which both read.

    Raises:
        ValueError: if they are different folders.
    """
    named = tuple(part for part in PurePath(configured).parts if part not in ("..", "."))
    if (
        found.parts[len(found.parts) - len(named) :] != named
        and found.resolve() != Path(configured).resolve()
    ):
        raise ValueError(
            f"{section}.root must be the folder of the dataset {section.removesuffix('.data')}.raw, {found}, got {configured!r}; "
            f"set {variable} in globals.yml, which both read"
        )
