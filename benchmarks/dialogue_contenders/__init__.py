"""The contenders of ``benchmarks/dialogue_step.py``: one file each, and the work that is the same for all."""
