"""One-line faults of the whole package, and the tests that find them first; ``run.py`` shows that they do."""

from pathlib import Path

from mutation import KINDS, Mutation, read_faults

__all__ = ["KINDS", "MUTATIONS", "Mutation"]

MUTATIONS = tuple(fault for path in sorted((Path(__file__).parent / "faults").glob("*.txt")) for fault in read_faults(path))
