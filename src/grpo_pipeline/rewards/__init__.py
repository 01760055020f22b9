"""Rewards that users write as functions, measured in worker processes with a time limit and a cache."""
