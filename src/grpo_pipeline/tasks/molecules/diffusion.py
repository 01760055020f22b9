"""The parameters that make up a diffusion, in one value."""

from dataclasses import dataclass

from grpo_pipeline.tasks.molecules.diffusion_params import DenoiserParams, NoiseParams, TrajectoryParams, X0LossParams


@dataclass(frozen=True)
class Diffusion:
    """What belongs together: the noise, the network that undoes it, how trajectories are drawn, and what x0 costs."""

    noise: NoiseParams
    denoiser: DenoiserParams
    trajectory: TrajectoryParams
    supervised: X0LossParams
