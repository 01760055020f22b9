"""Which files of the package import a module of it."""

import ast
from functools import cache
from pathlib import Path

import grpo_pipeline

SRC = Path(grpo_pipeline.__file__).parent


def importers(package: str, name: str) -> set[str]:
    """Return the files that import a module of a package, or anything from it."""
    return {file for file, module, names in _imports() if module == f"{package}.{name}" or (module == package and name in names)}


@cache
def _imports() -> list[tuple[str, str | None, set[str]]]:
    """List file, module and names of every ``from … import …`` of the package, read once."""
    return [
        (file.relative_to(SRC).as_posix(), node.module, {alias.name for alias in node.names})
        for file in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    ]
