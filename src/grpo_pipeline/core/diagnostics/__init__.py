"""Checks of the algorithm: statistics of an update, and gradients of each loss term."""
