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
from grpo_pipeline.core.objective.policy import PolicyLoss
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.policy_gradient.denominators import (
    StepDenominators,
    add,
    all_reduce_counts,
    count,
)
from grpo_pipeline.core.policy_gradient.kl import count_kl
from grpo_pipeline.core.training.micro_batches import (
    bounds,
    join_prompts,
    take_prompts,
)
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.step.experience import Experience, Report, StepShare
from grpo_pipeline.pipelines.step.scoring import scores_kl
from grpo_pipeline.tasks.base import Task


def cut_experience(
    algorithm: AlgorithmParams, training: TrainingParams, task: Task, experience: Experience
) -> tuple[Experience, ...]:
    """Cut the experience of a batch into micro-batches that know the denominators of the whole step.

    Advantages, importance weights and values at rollout time are those of the whole batch. Without micro-batches the batch is
    one piece, and each term is divided by what it counts itself.
    """
    if (size := training.micro_batch_size) is None:
        return (experience,)
    places = bounds(len(experience.rollouts.actions), size)
    undecoded = replace(experience, outcomes=None, resampling={})
    micro_batches = [take_prompts(undecoded, *place) for place in places]
    # Each part of the supervised loss is cut by its share of the step's targets, so that the shares add up to 1.
    counts = torch.stack(
        [task.supervised_counts(micro_batch.batch) for micro_batch in micro_batches]
    )  # [micro-batches, T]
    shares = counts / counts.sum(0).clamp(min=1)  # [micro-batches, T]
    if algorithm.losses.policy is None:
        return tuple(
            replace(one, share=StepShare(i, shares[i], None)) for i, one in enumerate(micro_batches)
        )
    # One denominator for each term of the step, known before the first micro-batch is computed.
    counted = add(*(_count(algorithm, algorithm.losses.policy, task, one) for one in micro_batches))
    found = all_reduce_counts(counted, gradient_reduction="sum")
    return tuple(
        replace(one, share=StepShare(i, shares[i], found)) for i, one in enumerate(micro_batches)
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


def _count(
    algorithm: AlgorithmParams, params: PolicyLoss, task: Task, micro_batch: Experience
) -> StepDenominators:
    found = count(
        micro_batch.rollouts.is_valid,
        ratio_level=params.ratio_level,
        reduction=params.reduction,
        returns=micro_batch.rewards.total.nanmean(1),
        max_decisions=params.max_decisions,
    )
    kl = algorithm.losses.kl
    of_prompts = kl is None or (kl.estimator == "exact" and not scores_kl(task))
    if of_prompts:
        return found
    of_decisions = count_kl(
        micro_batch.rollouts.is_valid,
        ratio_level=params.ratio_level,
        reduction=params.reduction,
        max_decisions=params.max_decisions,
    )
    return replace(found, kl=of_decisions)
