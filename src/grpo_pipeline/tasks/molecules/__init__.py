"""Molecules drawn by discrete graph diffusion: one prompt is a graph size, one sample a trajectory of T denoising steps."""
