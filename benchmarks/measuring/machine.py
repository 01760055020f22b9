"""Describe what figures depend on beside the sizes: code, seed, machine, load, torch. Each part is JSON-able, by name."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


def code(seed: int) -> dict[str, Any]:
    """Return the commit, ``-dirty`` where files differ from it and ``unknown`` without git, and the seed."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {"commit": commit.stdout.strip() or "unknown", "seed": seed}


def hardware(device: torch.device = CPU) -> dict[str, Any]:
    """Return the name of the device that computes, and how many cores the processor has."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine()
    )
    return {"device": name, "cores": os.cpu_count()}


def load() -> dict[str, Any]:
    """Return how many processes wanted a core in the last minute: to be read before anything is measured."""
    return {"load before": round(os.getloadavg()[0], 1)}


def library(threads: int) -> dict[str, Any]:
    """Return torch's threads and version."""
    return {"threads": threads, "torch": torch.__version__}
