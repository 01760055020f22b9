"""The benchmark measures what it says: the plain loop computes the same, and ratios are taken within rounds."""

import json
from dataclasses import replace

import pytest
import torch
from benchmark_scripts import load_benchmark

from grpo_pipeline.tasks.molecules.graphs.graphs import Components, make_prompts

bench = load_benchmark("molecules")

from molecule_contenders import agreement, growth, report  # noqa: E402
from molecule_contenders.plain_loop import PlainLoop  # noqa: E402
from molecule_contenders.workload import Workload  # noqa: E402

TINY = Workload(nodes=4, steps=5, graphs=2, steps_per_chunk=2, network=bench.TINY)


@pytest.mark.parametrize(("nodes", "steps", "chunk"), [(5, 4, 3), (2, 6, 1), (1, 3, 5)])
def test_the_plain_loop_has_our_log_probabilities_and_gradient(nodes: int, steps: int, chunk: int) -> None:
    work = replace(TINY, nodes=nodes, steps=steps, steps_per_chunk=chunk)
    found = agreement.distances(work)
    assert len(found) == 4
    assert max(found.values()) < 1e-5
    agreement.check(found)


@pytest.mark.parametrize("t", [1, 3, 5])
def test_dense_matrices_give_the_reverse_step_of_every_class(t: int) -> None:
    plain, rollouts = PlainLoop(TINY), TINY.rollouts
    entries = Components(*(part[0, 0, t].long() for part in (rollouts.atoms, rollouts.charges, rollouts.bonds)))
    alone = make_prompts(torch.tensor([4]), 4)
    ours = TINY.policy.step_log_probs(entries.each(lambda part: part[None]), alone, torch.tensor([t]))
    for found, wanted in zip(plain.log_probs(entries, t), ours, strict=True):
        assert torch.allclose(found, wanted[0].double(), atol=1e-5)
        assert torch.allclose(found.exp().sum(-1), torch.ones(len(found), dtype=torch.float64))


def test_the_exponent_of_a_power_law() -> None:
    assert growth.exponent({size: 3 * size**1.7 for size in (9, 20, 38)}) == pytest.approx(1.7)
    assert growth.exponent({9: 4.0, 18: 4.0}) == pytest.approx(0.0)
    assert growth.exponent({9: 4.0}) is None


def test_sizes_are_every_n_with_every_t(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []
    monkeypatch.setattr(bench, "measure_cell", lambda work, rounds: seen.append((work.nodes, work.steps, work.graphs)))
    monkeypatch.setattr(bench, "measure_shares", lambda work, rounds: {})
    monkeypatch.setattr(bench, "format_report", lambda found: "")
    bench.main(["--no-memory", "--nodes", "9", "38", "--steps", "50", "200", "--threads", "1"])
    assert seen == [(9, 50, 64), (9, 200, 64), (38, 50, 4), (38, 200, 4)]
    seen.clear()
    bench.main(["--no-memory", "--nodes", "9", "--steps", "50", "--graphs", "3", "--threads", "1"])
    assert seen == [(9, 50, 3)]


def test_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything but the child processes, of which the last test starts one."""
    monkeypatch.setattr(bench, "_ask", lambda question: bench.answer(question))
    bench.main(["--quick", "--repeats", "1", "--threads", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [(cell["nodes"], cell["steps"]) for cell in found["cells"]] == [(3, 2), (3, 4), (5, 2), (5, 4)]
    assert all(len(values) == 1 and min(values) > 0 for cell in found["cells"] for values in cell["cpu"].values())
    assert {(row["name"], row["steps"]) for row in found["memory"]} == {
        (name, t) for name in ("update", "update by chunks", "update, plain") for t in (2, 4)
    }
    assert all(0 < share["low"] <= share["median"] <= share["high"] for share in found["shares"]["found"]["update"].values())
    for row, added in zip(found["memory"], (10.0, 20.0, 40.0, 11.0, 20.0, 90.0), strict=True):
        row["added"] = added
    text = report.format_report(found)
    assert "| update | 10 | 11 | 1.10 |" in text
    assert "| update, plain | 40 | 90 | 2.25 |" in text
    assert all(name in text for name in ("commit", "seed 0", "threads 1", "in T, n = 3", "in n, T = 4", "wanted 60%"))
    assert f"| 3 | 2 | 4 / 1 | {1 / sum(found['cells'][0]['wall']['sample']):.3g} |" in text
    assert "Memory is not measured" in report.format_report({**found, "memory": []})
