"""Small graphs, prompts and noise for the tests of the molecules task."""

import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy, build_policy
from grpo_pipeline.tasks.molecules.diffusion.noise import GraphNoise
from grpo_pipeline.tasks.molecules.diffusion.params import DenoiserParams, NoiseParams, TrajectoryParams
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories
from grpo_pipeline.tasks.molecules.diffusion.trajectory_sampling import sample_trajectories
from grpo_pipeline.tasks.molecules.diffusion.transition import marginal_limit
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_entries import graphs_of
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts, make_prompts
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs

CLASSES = Components(3, 2, 4)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise_params(steps: int = 5, **changes: object) -> NoiseParams:
    values = {"steps": steps, "limit": "uniform", "exponents": {"atoms": 1.0, "charges": 1.0, "bonds": 1.5}}
    return NoiseParams.model_validate(values | changes)


def skewed_limit(classes: int) -> Tensor:
    """Return probabilities in the proportion 1 : 2 : 3 ..."""
    return marginal_limit(torch.arange(classes))


def graph_noise(steps: int = 5, classes: Components[int] = CLASSES) -> GraphNoise:
    return GraphNoise(classes.each(skewed_limit), noise_params(steps))


def prompts(sizes: list[int], nodes: int) -> GraphPrompts:
    return make_prompts(torch.tensor(sizes), nodes)


def random_entries(wanted: GraphPrompts, classes: Components[int] = CLASSES, seed: int = 0) -> Components[Tensor]:
    """Draw every entry uniformly; padding 0."""
    source = generator(seed)
    return wanted.masks.each(lambda mask, k: torch.randint(k, mask.shape, generator=source).masked_fill(~mask, 0), classes)


def random_graphs(sizes: list[int], nodes: int, classes: Components[int] = CLASSES, seed: int = 0) -> MoleculeGraphs:
    wanted = prompts(sizes, nodes)
    return graphs_of(random_entries(wanted, classes, seed), wanted.sizes)


def denoiser_params(**changes: object) -> DenoiserParams:
    values = {"layers": 2, "width": 8, "pair_width": 4, "global_width": 6, "heads": 2}
    return DenoiserParams.model_validate(values | changes)


def policy(
    steps: int = 5, classes: Components[int] = CLASSES, *, conditions: int = 0, seed: int = 0, **changes: object
) -> GraphPolicy:
    """A policy in float64 with weights large enough that predictions differ from entry to entry."""
    built = build_policy(
        classes.each(skewed_limit), noise_params(steps), denoiser_params(**changes), conditions=conditions, seed=seed
    ).double()
    with torch.no_grad():
        for head in built.denoiser.heads.values():
            head.logits.weight.mul_(4.0)
    return built


def trajectory_params(**changes: object) -> TrajectoryParams:
    values = {
        "start": "independent",
        "entry_reduction": "sum",
        "estimator": "step",
        "steps_per_update": None,
        "steps_per_chunk": None,
    }
    return TrajectoryParams.model_validate(values | changes)


def sample(
    model: GraphPolicy, wanted: GraphPrompts, group_size: int = 3, *, seed: int = 0, temperature: float = 1.0, **changes: object
) -> Trajectories:
    params = trajectory_params(**changes)
    return sample_trajectories(model, wanted, group_size, params=params, temperature=temperature, generator=generator(seed))
