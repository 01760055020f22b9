"""The graph transformer that predicts a molecule from a noisy graph."""
