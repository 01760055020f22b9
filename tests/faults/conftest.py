"""Lets the tests of this folder import the modules beside them, as the script ``fault_run.py`` does."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
