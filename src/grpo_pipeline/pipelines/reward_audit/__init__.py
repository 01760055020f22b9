"""Audit a reward before training: score policies that need no training with it."""
