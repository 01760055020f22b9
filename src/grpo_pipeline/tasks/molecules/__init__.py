"""Draw molecules by discrete graph diffusion: a prompt is a graph size, a sample a trajectory of T denoising steps."""
