"""Discrete graph diffusion: noise, trajectories of denoising, and their log-probabilities."""
