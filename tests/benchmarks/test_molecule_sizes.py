"""The benchmark of groups of similar size runs, and says what it compared."""

import json
from types import ModuleType

import pytest
from benchmark_scripts import load_benchmark

from grpo_pipeline.tasks.molecules.diffusion import trajectories


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_benchmark("molecule_sizes")


def test_it_reports_ratios_of_what_it_timed(bench: ModuleType, capsys: pytest.CaptureFixture[str]):
    before = dict(trajectories.CUT_COSTS)
    bench.main(["--quick", "--json", "--mean", "8", "--spread", "3", "--largest", "38"])
    report = json.loads(capsys.readouterr().out)
    assert report["sizes"] == sorted(report["sizes"])
    assert len(report["sizes"]) == 8
    assert sum(group["prompts"] for group in report["groups"]) == 8
    assert max(group["nodes"] for group in report["groups"]) == max(report["sizes"])
    for half, found in report["whole_to_groups"].items():
        times = report["cpu_seconds_per_graph"]
        assert found["median"] == pytest.approx(times[f"{half}, whole"][0] / times[f"{half}, groups"][0])
    assert before == trajectories.CUT_COSTS


def test_unlike_log_probabilities_end_it(bench: ModuleType, monkeypatch: pytest.MonkeyPatch):
    join = bench.score_steps.__globals__["join_rows"]
    monkeypatch.setitem(
        bench.score_steps.__globals__,
        "join_rows",
        lambda parts, groups: join(parts, groups) if groups[0].is_whole else join(parts, groups).flip(0),
    )
    with pytest.raises(RuntimeError, match="must give the log-probabilities of whole batches"):
        bench.main(["--quick"])
