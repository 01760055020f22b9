"""What all benchmarks share: ratios within rounds, and memory at the peak."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from measuring.memory import added_mb
from measuring.spread import Spread, ratio, spread


def test_ratios_are_taken_within_rounds_and_scaled() -> None:
    """2/1, 9/3, 4/4 -> 2, 3, 1; and halved."""
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == Spread(2.0, 1.0, 3.0)
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0], scale=2.0) == Spread(1.0, 0.5, 1.5)
    assert spread([7.0, 1.0, 4.0, 2.0]) == Spread(3.0, 1.0, 7.0)


def test_memory_is_what_a_call_adds_at_its_peak() -> None:
    """16 Mi numbers of 4 bytes are 64 MiB, freed again before the call ends."""
    kept = torch.ones(16 * 2**20)
    assert 60 < added_mb(lambda: torch.ones(16 * 2**20).sum()) < 80
    assert kept.numel() == 16 * 2**20
