"""Draw trajectories: from noise to molecules in T steps, keeping every graph and the log-probability of every step.

How this differs from public versions:

- The log-probabilities of the draw are kept, as denominators of an update's ratios.
- Every graph between is kept, in a byte per entry.
- Every row has its own noise at every step, and groups may start from the same graph.
- Graphs are as wide as those of similar size, not as the largest (``size_groups``).
"""

import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.diffusion.noise import draw_entries
from grpo_pipeline.tasks.molecules.diffusion.params import TrajectoryParams
from grpo_pipeline.tasks.molecules.diffusion.size_groups import (
    cut_prompts,
    join_trajectories,
    size_groups,
)
from grpo_pipeline.tasks.molecules.diffusion.step_scores import reduce_entries
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_entries import entry_logprobs
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts

MOST_CLASSES = 256


@torch.no_grad()
def sample_trajectories(
    policy: GraphPolicy,
    prompts: GraphPrompts,
    group_size: int,
    *,
    params: TrajectoryParams,
    temperature: float,
    generator: torch.Generator,
) -> Trajectories:
    """Draw G trajectories for each prompt (no grad).

        z_T ~ the limit distributions,   z_{t-1} ~ p(. | z_t) = product over entries of ``Transition.reverse``,   t = T..1

    The start does not depend on the policy, so it is no decision. The log-probabilities are those of the steps. For the eager
    estimator, ``step_scores.rescored`` replaces them.

    Args:
        policy: network and noise.
        prompts: P rows.
        group_size: G.
        params: start of a group, and reduction of entries.
        temperature: divides the logits of x0, above 0; the same number in sampler and scorer.
        generator: the only source of randomness, on the device of the policy.

    Raises:
        ValueError: if the temperature or the group size is not positive, or a vocabulary does not fit into a byte.
    """
    _check(policy, group_size)
    groups = size_groups(prompts, group_size)
    parts = [
        _sample(policy, cut_prompts(prompts, group), group_size, params, temperature, generator)
        for group in groups
    ]
    return join_trajectories(parts, groups, prompts.nodes)


def _sample(
    policy: GraphPolicy,
    prompts: GraphPrompts,
    group_size: int,
    params: TrajectoryParams,
    temperature: float,
    generator: torch.Generator,
) -> Trajectories:
    """Draw trajectories of prompts of similar size."""
    rows = prompts.repeated(group_size)  # N = P * G rows
    masks = rows.masks
    entries = _start(policy, prompts, group_size, params, generator)
    states, logprobs, is_open = (
        [entries.each(_compact)],
        [],
        policy.noise.classes.each(lambda k: k > 1),
    )
    for t in range(policy.noise.steps, 0, -1):
        time = torch.full_like(rows.sizes, t)  # [N]
        log_probs = policy.step_log_probs(entries, rows, time, temperature=temperature)
        # The log-probability of the draw, from the same distributions: the old policy of the update.
        entries = draw_entries(log_probs, masks, generator=generator)
        taken = entry_logprobs(log_probs, entries, masks)
        logprobs.append(reduce_entries(taken, masks, is_open, params.entry_reduction))  # [N]
        states.append(entries.each(_compact))
    # T tensors [N] -> [N, T], from t = T to t = 1.
    return _assemble(prompts, group_size, states, torch.stack(logprobs, dim=-1))


def _start(
    policy: GraphPolicy,
    prompts: GraphPrompts,
    group_size: int,
    params: TrajectoryParams,
    generator: torch.Generator,
) -> Components[Tensor]:
    """Draw z_T, N rows: independent, or the same graph for a group."""
    if params.start == "independent":
        return policy.noise.draw_start(prompts.repeated(group_size), generator=generator)
    shared = policy.noise.draw_start(prompts, generator=generator)
    return shared.each(lambda part: part.repeat_interleave(group_size, dim=0))


def _assemble(
    prompts: GraphPrompts, group_size: int, states: list[Components[Tensor]], logprobs: Tensor
) -> Trajectories:
    """Order the graphs of all steps, drawn from T to 0, by their times."""
    shape = (len(prompts.sizes), group_size)
    atoms, charges, bonds = (
        # [N, T + 1, ...] -> [P, G, T + 1, ...], reversed, so that index s holds z_s.
        torch.stack(parts[::-1], dim=1).view(*shape, len(parts), -1)
        for parts in zip(*states, strict=True)
    )
    steps = logprobs.shape[-1]
    times = (
        torch.arange(steps, 0, -1, device=prompts.sizes.device).expand(*shape, steps).contiguous()
    )
    return Trajectories(
        actions=times,
        logprobs=logprobs.view(*shape, steps),
        is_valid=torch.ones_like(times, dtype=torch.bool),
        atoms=atoms,
        charges=charges,
        bonds=bonds,
        sizes=prompts.sizes,
        conditions=prompts.conditions,
    )


def _compact(entries: Tensor) -> Tensor:
    return entries.to(torch.uint8)


def _check(policy: GraphPolicy, group_size: int) -> None:
    if group_size < 1:
        raise ValueError(
            f"group_size must be at least 1, got {group_size}; set it to the number of samples per prompt"
        )
    if max(policy.noise.classes) > MOST_CLASSES:
        got = max(policy.noise.classes)
        raise ValueError(
            f"a vocabulary must have at most {MOST_CLASSES} classes, got {got}; each is kept in one byte"
        )
