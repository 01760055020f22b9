"""Draw and score graphs by discrete diffusion: noise, denoising trajectories, and their log-probabilities."""
