"""The benchmark of reading runs, in a process per measurement, and every row that it writes is read."""

import pytest
from benchmark_scripts import load_benchmark


def test_it_measures_the_checks_of_both_readers(capsys: pytest.CaptureFixture[str]) -> None:
    module = load_benchmark("reading")
    module.main(["--rows", "40"])
    _, _, *lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows.keys() == {"dialogue", "molecules"}
    assert rows["dialogue"][:2] == ["40", "40"]
    assert rows["molecules"][0] == "40"
    assert 30 <= int(rows["molecules"][1]) <= 40
    assert all(float(found[4]) >= float(found[3]) > 50 for found in rows.values())
