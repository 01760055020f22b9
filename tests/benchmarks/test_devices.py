"""The comparison of devices: the CPU beside itself is exact, bf16 is not, and the table keeps its place in the document."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmark_scripts import load_benchmark

devices = load_benchmark("devices")


def test_the_cpu_beside_itself_is_exact_and_bf16_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # What opening a project leaves in this process is undone.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    with devices.project_copy() as project, devices.quiet_nodes():
        devices.bootstrap_project(project)
        devices.prepare(project, "attention", "smoke")
        monkeypatch.setattr(devices, "PRECISIONS", devices.PRECISIONS[-1:])  # the two of float32 are one on a CPU
        monkeypatch.setattr(devices, "WARM", 1)
        exact, bf16 = devices.compare(project, "attention", "smoke", "cpu", 2)
    assert [exact[name] for name in ("log-prob", "reward", "gradient", "ratio")] == [0.0, 0.0, 0.0, 0.0]
    assert (exact["again"], exact["resume"]) == ("same bits", "same bits")
    assert (exact["contract"], bf16["contract"]) == ("kept", "kept")
    assert bf16["precision"] == "bf16"
    assert 0 < bf16["log-prob"] < 0.1
    assert 0 < bf16["gradient"] < 0.1


def test_a_broken_promise_is_in_the_table_and_its_sentence_is_printed(monkeypatch, capsys) -> None:
    def broken(task: object, data: object) -> None:
        raise devices.TaskContractError("Task.sample must draw from the generator")

    monkeypatch.setattr(devices, "check_task", broken)
    monkeypatch.setattr(devices, "network_precision", lambda state: nullcontext())
    opened = SimpleNamespace(task=SimpleNamespace(name="words", device="cpu"), data=None, state=lambda: None)
    assert devices.keeps_contract(opened) == "broken"
    assert capsys.readouterr().out == "words on cpu: Task.sample must draw from the generator\n"


def test_weights_that_differ_are_said_with_their_distance() -> None:
    torch = devices.torch
    a = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor([], dtype=torch.int64)}
    assert devices.same(devices.apart(a, a)) == "same bits"
    assert devices.same(devices.apart(a, {**a, "w": torch.tensor([1.0, 2.5])})) == "5.0e-01"


def test_the_table_takes_the_place_of_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "gpu.md"
    page.write_text("before\n<!-- devices -->\nold\n<!-- /devices -->\nafter\n")
    monkeypatch.setattr(devices, "PAGE", page)
    devices.write("| new |")
    assert page.read_text() == "before\n<!-- devices -->\n| new |\n<!-- /devices -->\nafter\n"
