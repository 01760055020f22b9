"""Parts that all benchmarks share: ratios within rounds, and memory at the peak."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from measuring import memory
from measuring.memory import added_mb
from measuring.spread import Spread, ratio, spread


def test_ratios_are_taken_within_rounds_and_scaled() -> None:
    """2/1, 9/3, 4/4 -> 2, 3, 1; and halved."""
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == Spread(2.0, 1.0, 3.0)
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0], scale=2.0) == Spread(1.0, 0.5, 1.5)
    assert spread([7.0, 1.0, 4.0, 2.0]) == Spread(3.0, 1.0, 7.0)


def test_memory_is_what_a_call_adds_at_its_peak() -> None:
    """64 Mi numbers of 4 bytes are 256 MiB, freed again before the call ends."""
    kept = torch.ones(64 * 2**20)
    assert 240 < added_mb(lambda: torch.ones(64 * 2**20).sum()) < 290
    assert kept.numel() == 64 * 2**20


def test_a_peak_is_no_less_than_what_was_held_at_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the mark of the system lies below it, its counts being rough; and what rises above it counts."""
    monkeypatch.setattr(memory, "_status_mb", {"VmHWM": 10.0}.__getitem__)
    assert [memory.peak_since_mark_mb(held) for held in (12.5, 8.0)] == [12.5, 10.0]
