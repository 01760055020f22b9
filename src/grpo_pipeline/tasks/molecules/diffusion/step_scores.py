"""Compute log-probability, entropy and exact KL of every step of stored trajectories under the present weights.

How this differs from public versions:

- The drawn graphs are replayed; no graph is drawn anew.
- The log-probability is that of the step: the sum over atoms, charges and bonds, each bond once and padding never.
- The ratio of an update is relative to the policy that drew. The reference enters by its KL alone.
- Steps are computed in chunks that the backward pass computes again. Any loss over all steps needs the memory of one chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from grpo_pipeline.core.policy_gradient.kl import categorical_kl
from grpo_pipeline.core.policy_gradient.names import choose
from grpo_pipeline.core.sampling.plackett_luce import entropy_of
from grpo_pipeline.core.training.recomputation import recomputed
from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.diffusion.params import EntryReduction, TrajectoryParams
from grpo_pipeline.tasks.molecules.diffusion.size_groups import (
    cut_trajectories,
    join_rows,
    size_groups,
)
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories, transitions_of
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_entries import entry_logprobs
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts


@dataclass(frozen=True)
class StepScores:
    """Scores of the decisions of trajectories under a policy, in nats and reduced over entries.

    Attributes:
        logprobs: [P, G, L], of the drawn steps.
        entropy: [P, G, L], analytic, of the distribution of the step.
        kl: [P, G, L], KL(policy || reference) of the two distributions given the same z_t, exact; None without a reference.
    """

    logprobs: Tensor
    entropy: Tensor
    kl: Tensor | None = None


def score_steps(
    policy: GraphPolicy,
    rollouts: Trajectories,
    *,
    params: TrajectoryParams,
    temperature: float,
    reference: GraphPolicy | None = None,
) -> StepScores:
    """Compute log-probabilities of the stored steps, their entropies, and the KL to a reference.

        step     l[t] = log p(z_{t-1} | z_t) = sum over entries of log p(entry of z_{t-1} | z_t)
        eager    l[t] = sum over entries of log p(x0 = entry of z_0 | z_t)

    With ``entry_reduction: mean`` each sum is divided by the number of entries (``reduce_entries``). At the first update,
    ``step`` equals the log-probabilities of the draw up to rounding. Sources: Graph Diffusion Policy Optimization, arXiv
    2402.16302 (eager); DDPO, arXiv 2305.13301 (steps as decisions).

    With gradient and more than one chunk, the forward pass keeps only the results. The backward pass computes each chunk again,
    which costs a second forward pass. ``backward_by_chunks`` saves that for losses that are sums over steps.

    Args:
        policy: the policy, with the noise of the draw.
        rollouts: the drawn trajectories; ``choose_decisions`` leaves out steps.
        params: estimator, reduction, and how many steps are computed at a time.
        temperature: temperature of sampling, also for the reference.
        reference: reference of the KL, without gradient; None for no KL.

    Raises:
        ValueError: if the policy's noise has another number of steps than the trajectories.
    """
    if policy.noise.steps != rollouts.steps:
        raise ValueError(
            f"trajectories must have the {policy.noise.steps} steps of the policy's noise, got {rollouts.steps}; score them with "
            "the policy that drew them, or one of the same noise"
        )
    # Prompts of similar size share a width; one call holds G * (steps of a chunk) graphs of each prompt.
    kept = rollouts.actions.shape[-1]
    groups = size_groups(
        rollouts.prompts, rollouts.actions.shape[1] * min(kept, params.steps_per_chunk or kept)
    )
    parts = [
        _score(policy, cut_trajectories(rollouts, group), params, temperature, reference)
        for group in groups
    ]
    # [P, G, L, 2 or 3] -> a tensor [P, G, L] for each kind of score.
    return StepScores(*join_rows(parts, groups).unbind(dim=-1))


def _score(
    policy: GraphPolicy,
    rollouts: Trajectories,
    params: TrajectoryParams,
    temperature: float,
    reference: GraphPolicy | None,
) -> Tensor:
    """Score all decisions of trajectories of similar size, chunk by chunk: [R, G, L, 2], or 3 with a reference."""

    def score(decisions: slice) -> Tensor:
        scores = _score_chunk(policy, rollouts, decisions, params, temperature, reference)
        return torch.stack(
            [part for part in (scores.logprobs, scores.entropy, scores.kl) if part is not None],
            dim=-1,
        )

    chunks = list(chunks_of(rollouts.actions.shape[-1], params.steps_per_chunk))
    # A single chunk keeps its graph. Several are computed again in the backward pass, so that only one is in memory.
    weights = list(policy.parameters())
    parts = [
        recomputed(partial(score, chunk), weights) if len(chunks) > 1 else score(chunk)
        for chunk in chunks
    ]
    return torch.cat(parts, dim=2)


def rescored(
    policy: GraphPolicy, rollouts: Trajectories, *, params: TrajectoryParams, temperature: float
) -> Trajectories:
    """Replace the log-probabilities of the trajectories by the estimator's present ones, without gradient.

    It is for ``eager``, whose log-probabilities need the final graph. Called right after the draw, it stores those of the policy
    that drew, so that the ratio of the first update is 1.
    """
    with torch.no_grad():
        return replace(
            rollouts,
            logprobs=score_steps(policy, rollouts, params=params, temperature=temperature).logprobs,
        )


def reduce_entries(
    values: Components[Tensor],
    masks: Components[Tensor],
    is_open: Components[bool],
    reduction: EntryReduction,
) -> Tensor:
    """Reduce the values of entries to a number for each row.

        sum     sum over atoms, charges and bonds of the row
        mean    the same / number of the row's entries whose component has more than one class

    Args:
        values: [R, N] each, 0 for padding.
        masks: bool [R, N] each.
        is_open: whether a component has more than one class; the others have value 0 and are not counted.
        reduction: by name.

    Returns:
        [R].
    """
    return choose(_REDUCTIONS, reduction, "entry_reduction")(values, masks, is_open)


def chunks_of(length: int, size: int | None) -> Iterator[slice]:
    """Yield slices that cover 0..length - 1 in order, at most ``size`` long; a single slice for None."""
    width = length if size is None else size
    yield from (slice(start, min(start + width, length)) for start in range(0, length, width))


def _score_chunk(
    policy: GraphPolicy,
    rollouts: Trajectories,
    decisions: slice,
    params: TrajectoryParams,
    temperature: float,
    reference: GraphPolicy | None,
) -> StepScores:
    """Score some decisions of all trajectories in a single call of the network."""
    # Every decision is a row of its own: R = P * G * S, S decisions of the chunk.
    before, after, t = transitions_of(rollouts, decisions)
    shape = rollouts.actions[:, :, decisions].shape  # [P, G, S]
    prompts = rollouts.prompts.repeated(shape[1] * shape[2])  # R rows
    masks, is_open = prompts.masks, policy.noise.classes.each(lambda k: k > 1)
    view = choose(_ESTIMATORS, params.estimator, "estimator")
    log_probs = view(policy, before, prompts, t, temperature)  # [R, N, K] each
    # The step estimator scores z_{t-1}, the eager one the molecule z_0, the same for all S steps of a trajectory.
    target = (
        after
        if params.estimator == "step"
        else rollouts.entries.each(
            lambda part: part[:, :, :1].expand(*shape, part.shape[-1]).flatten(0, 2)
        )
    )  # [R, N] each

    def reduced(values: Components[Tensor]) -> Tensor:
        return reduce_entries(
            values.each(_masked, masks), masks, is_open, params.entry_reduction
        ).view(shape)

    kl = None
    if reference is not None:
        with torch.no_grad():
            other = view(reference, before, prompts, t, temperature)
        kl = reduced(
            log_probs.each(
                lambda p, q: categorical_kl(p, q, torch.ones_like(q, dtype=torch.bool)), other
            )
        )
    return StepScores(
        reduced(entry_logprobs(log_probs, target, masks)), reduced(log_probs.each(entropy_of)), kl
    )


def _step_view(
    policy: GraphPolicy,
    before: Components[Tensor],
    prompts: GraphPrompts,
    t: Tensor,
    temperature: float,
) -> Components[Tensor]:
    return policy.step_log_probs(before, prompts, t, temperature=temperature)


def _eager_view(
    policy: GraphPolicy,
    before: Components[Tensor],
    prompts: GraphPrompts,
    t: Tensor,
    temperature: float,
) -> Components[Tensor]:
    return policy.x0_logits(before, prompts, t, temperature=temperature).each(
        lambda z: z.log_softmax(dim=-1)
    )


_ESTIMATORS = {"step": _step_view, "eager": _eager_view}


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    return values.masked_fill(~mask, 0.0)


def _sum(
    values: Components[Tensor], masks: Components[Tensor], is_open: Components[bool]
) -> Tensor:
    return torch.cat(list(values), dim=-1).sum(dim=-1)  # [R, n + n + M] -> [R]


def _mean(
    values: Components[Tensor], masks: Components[Tensor], is_open: Components[bool]
) -> Tensor:
    counts = masks.each(lambda mask, is_counted: mask.sum(dim=-1) * int(is_counted), is_open)
    number: Tensor = counts.atoms + counts.charges + counts.bonds  # [R]
    return _sum(values, masks, is_open) / number.clamp(min=1)


_REDUCTIONS = {"sum": _sum, "mean": _mean}
