"""Checks of the algorithm: statistics of an update, gradients of each loss term, and small problems with a known answer."""
