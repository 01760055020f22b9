"""Lets the tests of this folder import the tiny graphs of ``tests/support``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
