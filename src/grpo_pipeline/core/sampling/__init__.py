"""Sampling from a policy, and the exact log-probability of each sample."""
