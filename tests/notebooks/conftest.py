"""Lets the tests of this folder import ``tests/support``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
