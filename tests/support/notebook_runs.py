"""Execute the code cells of a notebook as a kernel does, and look at what it shows."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"


def code_cells(name: str) -> list[dict[str, Any]]:
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@contextmanager
def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Execute the code cells in one namespace, as a kernel that starts in ``folder`` does; its figures are open inside."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KEDRO_ENV", "smoke")
    monkeypatch.setattr(plt, "show", lambda: None)
    namespace: dict[str, Any] = {}
    try:
        for number, cell in enumerate(code_cells(name)):
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), namespace)
        yield namespace
    finally:
        plt.close("all")


def files(folder: Path) -> set[str]:
    return {os.path.relpath(file, folder) for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts}


def titles() -> list[str]:
    return [axis.get_title() for number in plt.get_fignums() for axis in plt.figure(number).axes]
