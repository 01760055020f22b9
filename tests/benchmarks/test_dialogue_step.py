"""The benchmark measures what it says: all contenders do the same work, and ratios are taken within rounds."""

import pytest
from benchmark_scripts import load_benchmark

bench = load_benchmark("dialogue_step")

from dialogue_contenders import agreement, turns, with_trl, workload  # noqa: E402

TINY = bench.QUICK


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(workload.write_start(TINY, tmp_path_factory.mktemp("start")))


def test_all_contenders_have_the_gradient_of_our_update(start: str) -> None:
    found = agreement.gradients(TINY, start, with_trl=with_trl.is_installed())
    assert len(found) == 2 + with_trl.is_installed()
    assert len({frozenset(gradients) for gradients in found.values()}) == 1
    for name, distance in agreement.distances(found).items():
        assert distance < 1e-5, name
    assert all(float(gradient.norm()) > 0 for gradient in found[turns.OURS].values())


def test_report_without_trl_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the child processes, of which the last test starts one."""
    monkeypatch.setattr(with_trl, "is_installed", lambda: False)
    monkeypatch.setattr(bench, "_ask", lambda question, work, threads: bench.answer(question, work))
    found = bench.make_report([TINY], rounds=1, threads=1, memory=True)
    text = bench.format_report(found)
    assert "TRL is not installed; for the comparison: `pip install" in text
    assert f"{TINY.samples / found['sizes'][0]['wall']['ours'][0]:.1f}" in text
    assert all(0 < m["held"] <= m["peak"] for m in found["sizes"][0]["memory"].values())
