"""Which files of the package import a module of it."""

import ast
from pathlib import Path

import grpo_pipeline

SRC = Path(grpo_pipeline.__file__).parent


def importers(package: str, name: str) -> set[str]:
    """Return the files that import a module of a package, or anything from it."""
    found = set()
    for file in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (
                node.module == f"{package}.{name}" or (node.module == package and name in {alias.name for alias in node.names})
            ):
                found.add(file.relative_to(SRC).as_posix())
    return found
