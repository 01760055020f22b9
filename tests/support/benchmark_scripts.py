"""Scripts of benchmarks/ and docs/, which are no part of a package, to be tested as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def load_benchmark(name: str) -> ModuleType:
    """Import ``benchmarks/<name>.py`` under a name that no library has."""
    return load_script(f"benchmarks/{name}.py", name=f"{name}_benchmark")


def load_script(path: str, *, name: str) -> ModuleType:
    """Import a file of the repository under a name."""
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module
