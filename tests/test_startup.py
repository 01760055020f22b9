"""The command line imports nothing that takes long before a node runs.

Counted are imported modules, not seconds: CPU time depends on what else the machine does.
"""

import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
from kedro_processes import clean_environ

from grpo_pipeline.errors import OWN, is_expected

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"IPython", "kedro_datasets", "matplotlib", "mlflow", "pandas", "rdkit", "scipy", "sklearn", "torch", "transformers"}


def imported(*args: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The packages that ``kedro`` with these arguments imports, and how it ended."""
    command = [sys.executable, "-X", "importtime", "-m", "kedro", *args]
    done = subprocess.run(command, cwd=ROOT, env=clean_environ(), capture_output=True, text=True, timeout=300, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}, done


@pytest.mark.parametrize("args", [("--version",), ("--help",), ("run", "--help")], ids=" ".join)
def test_help_and_version_import_nothing_heavy(args: tuple[str, ...]) -> None:
    found, done = imported(*args)
    assert done.returncode == 0
    assert {"grpo_pipeline", "kedro"} <= found
    assert not found & HEAVY


@pytest.mark.parametrize("name", OWN)
def test_an_error_that_is_expected_by_name_exists(name: str) -> None:
    kind = resolve_name(name)
    assert f"{kind.__module__}:{kind.__name__}" == name
    assert is_expected(kind.__new__(kind))
