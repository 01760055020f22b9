"""Comparisons of samples, a file each: its parameters, and how rewards become advantages."""
