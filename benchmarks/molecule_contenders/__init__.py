"""Contenders of ``benchmarks/molecules.py``: the task's trajectories, and a loop over steps and graphs."""
