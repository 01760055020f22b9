"""Experiments of many trainings: comparisons of arms over seeds, and cross-validation."""
