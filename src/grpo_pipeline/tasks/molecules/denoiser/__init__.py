"""Predict a molecule from a noisy graph by a graph transformer."""
