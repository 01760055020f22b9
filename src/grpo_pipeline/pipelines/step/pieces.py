"""Cut a batch into micro-batches whose gradients add up to its own, and put together what they report.

No loss is divided by a count of its own (``denominators``). Peak memory follows the micro-batch: its graph is gone before the
next one begins.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from grpo_pipeline.core.diagnostics.gradient_report import add_gradients
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.training.micro_batches import (
    bounds,
    join_prompts,
    take_prompts,
)
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.step.experience import Experience, Report, StepShare
from grpo_pipeline.tasks.base import Task


def cut_experience(
    arm: Parts,
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    experience: Experience,
) -> tuple[Experience, ...]:
    """Cut the experience of a batch into micro-batches that know the denominators of the whole step.

    Advantages, importance weights and values at rollout time are those of the whole batch. Without micro-batches the batch is
    one piece, and each term is divided by what it counts itself.
    """
    if (size := training.micro_batch_size) is None:
        return (experience,)
    places = bounds(len(experience.rollouts.actions), size)
    undecoded = replace(experience, outcomes=None, resampling={})
    pieces = [take_prompts(undecoded, *place) for place in places]
    # Each part of the supervised loss is cut by its share of the step's targets, so that the shares add up to 1.
    targets = torch.stack([task.supervised_counts(piece.batch) for piece in pieces])
    shares = targets / targets.sum(0).clamp(min=1)  # [pieces, T]
    # One denominator for each term of the step, known before the first piece is computed.
    denominators = {
        term: torch.stack([count(algorithm, task, piece) for piece in pieces]).sum().clamp(min=1)
        for term, count in arm.counts.items()
    }
    return tuple(
        replace(piece, share=StepShare(number, shares[number], denominators))
        for number, piece in enumerate(pieces)
    )


def attach_micro_batch(
    task: Task, state: TrainState, micro_batch: Experience, update_epoch: int
) -> Experience:
    """Encode and decode the micro-batch with a graph, in the first update epoch; later ones need no decoding.

    A whole batch has its graph from the rollout.
    """
    if update_epoch > 0 or micro_batch.share is None:
        return micro_batch
    with network_precision(state):
        context = task.encode(state.policy, micro_batch.prompts)
        outcomes = task.decode(state.policy, context, micro_batch.rollouts, micro_batch.batch)
    return replace(micro_batch, context=context, outcomes=outcomes)


def join(reports: Sequence[Report]) -> Report:
    """Return what the pieces of an update have done together; each holds its share of a term, so that their sum is the term."""
    if len(reports) == 1:
        return reports[0]
    terms = {
        name: torch.stack([report.terms[name] for report in reports]).sum()
        for name in reports[0].terms
    }
    scored = [report.scores for report in reports if report.scores is not None]
    scores = cast(Scores, join_prompts(scored)) if scored else None
    gradients = add_gradients([report.gradients for report in reports])
    return Report(terms, reports[0].weights, scores, gradients)
