"""Trials: one arm trained with one seed, stored when finished, for comparisons and cross-validation alike."""
