"""Measure rewards that users write as functions, in worker processes with a time limit and a cache."""
