"""The parameters that make up a diffusion, in one value."""

from dataclasses import dataclass

from grpo_pipeline.tasks.molecules.diffusion_params import DenoiserParams, NoiseParams, TrajectoryParams, X0LossParams


@dataclass(frozen=True)
class Diffusion:
    """One diffusion model: the noise, the network that undoes it, how trajectories are drawn, and the loss of x0."""

    noise: NoiseParams
    denoiser: DenoiserParams
    trajectory: TrajectoryParams
    supervised: X0LossParams
