import platform
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_pipeline
from grpo_pipeline.runs.freed_memory import DECIDED_BY, keep_freed_memory

HERE = {"PYTHONPATH": str(Path(grpo_pipeline.__file__).parents[1])}
COUNT = """
import resource
{first}
def pages_of_a_round():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for megabytes in (1, 3, 8, 50, 20, 2):
        parts = [b"1" * (megabytes * 2**20) for _ in range(2)]
    # More at once than the 1 GiB that was kept first.
    parts = [b"1" * (100 * 2**20) for _ in range(11)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
pages_of_a_round()
# The fewest of some rounds: a small object that comes to lie between two blocks makes the heap grow by one block, once.
print(min(pages_of_a_round() for _ in range(2)))
"""


def page_faults(first: str, environ: dict[str, str]) -> int:
    """Count the pages that the system hands out while blocks of some megabytes, as of tensors, come and go."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT.format(first=first)], capture_output=True, text=True, check=True, env=environ | HERE
    )
    return int(done.stdout)


@pytest.mark.parametrize("name", DECIDED_BY)
def test_what_the_environment_says_about_memory_stays(name: str) -> None:
    assert not keep_freed_memory({name: ""})


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc is what is told to keep memory")
def test_a_run_keeps_freed_memory() -> None:
    """The settings say so, in every process that Kedro starts."""
    settings = "import grpo_pipeline.settings"
    plain, kept = page_faults(settings, {"GLIBC_TUNABLES": ""}), page_faults(settings, {})
    assert plain > 1000  # else there is nothing to save here
    assert kept < plain / 50
