"""Back-propagate a loss over the steps of trajectories by chunks, with the memory of one chunk and one forward pass."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy
from grpo_pipeline.tasks.molecules.diffusion.params import TrajectoryParams
from grpo_pipeline.tasks.molecules.diffusion.step_scores import StepScores, chunks_of, score_steps
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories

ChunkLoss = Callable[[StepScores, Trajectories], Tensor]


def backward_by_chunks(
    policy: GraphPolicy,
    rollouts: Trajectories,
    loss: ChunkLoss,
    *,
    params: TrajectoryParams,
    temperature: float,
    reference: GraphPolicy | None = None,
) -> Tensor:
    """Add the gradient of the loss to the policy's ``.grad``, with a backward pass for each chunk of steps.

        sum over chunks of loss(scores of the chunk, trajectories with the chunk's decisions)

    The gradient is exact for a loss that is a sum over decisions. Its denominators must be those of all steps
    (``core.policy_gradient.policy_loss.policy_loss`` with ``denominator``), and its ratios those of single decisions.

    Args:
        policy: the policy.
        rollouts: the drawn trajectories.
        loss: computes the chunk's share of the loss, a scalar with graph.
        params: estimator, reduction and steps of a chunk.
        temperature: temperature of sampling.
        reference: reference of the KL, or None.

    Returns:
        The loss of all steps, detached.
    """
    total: Tensor | None = None
    for decisions in chunks_of(rollouts.actions.shape[-1], params.steps_per_chunk):
        part = take_decisions(rollouts, decisions)
        scores = score_steps(
            policy, part, params=params, temperature=temperature, reference=reference
        )
        share = loss(scores, part)
        torch.autograd.backward(share)
        total = share.detach() if total is None else total + share.detach()
    assert total is not None  # a trajectory has at least one decision
    return total


def take_decisions(rollouts: Trajectories, decisions: slice) -> Trajectories:
    """Select these decisions of the trajectories; the graphs stay, as views."""
    return replace(
        rollouts,
        **{
            name: getattr(rollouts, name)[:, :, decisions]
            for name in ("actions", "logprobs", "is_valid")
        },
    )
