"""The benchmark of groups of similar size runs, and says what it compared."""

from types import ModuleType

import pytest
from benchmark_scripts import load_benchmark


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_benchmark("molecule_sizes")


def test_unlike_log_probabilities_end_it(bench: ModuleType, monkeypatch: pytest.MonkeyPatch):
    join = bench.score_steps.__globals__["join_rows"]
    monkeypatch.setitem(
        bench.score_steps.__globals__,
        "join_rows",
        lambda parts, groups: join(parts, groups) if groups[0].is_whole else join(parts, groups).flip(0),
    )
    with pytest.raises(RuntimeError, match="must give the log-probabilities of whole batches"):
        bench.main(["--quick"])
