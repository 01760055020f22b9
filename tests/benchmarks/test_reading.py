"""The benchmark of reading runs, in a process per measurement, and every row that it writes is read."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_it_measures_the_checks_of_both_readers(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("reading", ROOT / "benchmarks" / "reading.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.main(["--rows", "40"])
    _, _, *lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows.keys() == {"dialogue", "molecules"}
    assert rows["dialogue"][:2] == ["40", "40"]
    assert rows["molecules"][0] == "40"
    assert 30 <= int(rows["molecules"][1]) <= 40
    assert all(float(found[4]) >= float(found[3]) > 50 for found in rows.values())
