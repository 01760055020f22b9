"""What ``benchmarks/molecules.py`` compares: the task's trajectories, and a loop over steps and graphs."""
