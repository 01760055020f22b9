"""A data set whose arrays are several times what the process may allocate is checked, built and trained on."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SUPPORT = Path(__file__).resolve().parents[1] / "support"
RETURN_AT_ONCE = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
"""What is freed goes back to the system: the limit is on what is in use, not on what the allocator keeps."""
CORES, SIDE, LIMIT = 500, 256, 40 * 2**20


def write_data_set(root: Path) -> None:
    """Many cores that share three files: what is built is as large as if each had its own."""
    rng, mask = np.random.default_rng(0), np.zeros((SIDE, SIDE), np.uint8)
    mask[40:220, 40:220] = 255
    root.mkdir()
    Image.fromarray(rng.integers(0, 256, (SIDE // 8, SIDE // 8), dtype=np.uint8)).resize((SIDE, SIDE)).save(root / "image.png")
    Image.fromarray(mask).save(root / "mask.png")
    fixed = {"center": "a", "image": "image.png", "region_mask": "mask.png", "bag_mask": "mask.png", "lesion_mask": ""}
    clinical = dict.fromkeys(("age", "psa", "psa_density", "family_history"), "1")
    with (root / "manifest.csv").open("w", newline="") as file:
        rows = [
            {"core_id": f"c{i:04d}", "patient_id": f"p{i}", "label": str(i % 2), "involvement": "", "grade_group": ""} | fixed
            for i in range(CORES)
        ]
        writer = csv.DictWriter(file, [*rows[0], *clinical])
        writer.writeheader()
        writer.writerows([row | clinical for row in rows])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts allocations, and not maps of files, on Linux alone")
def test_building_and_training_need_no_more_memory_than_a_chunk(tmp_path: Path):
    write_data_set(tmp_path / "root")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "GRPO_PROGRESS": "off"} | RETURN_AT_ONCE
    command = [sys.executable, str(SUPPORT / "memory_limit.py"), str(tmp_path / "root"), str(tmp_path / "examples"), str(LIMIT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 3 * LIMIT
