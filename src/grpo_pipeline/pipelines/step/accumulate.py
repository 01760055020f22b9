"""Compute one update from micro-batches: each adds its gradient, then the weights change once.

    for each micro-batch: encode and decode with a graph -> losses over the denominators of the whole step -> backward
    then: one optimiser step, and the metrics of the whole batch

The gradients add up to that of the whole batch, because no loss is divided by a count of its own (``denominators``).
Peak memory follows the micro-batch: its graph is gone before the next one begins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Generator, Tensor

from grpo_pipeline.core.diagnostics.statistics import add_gradients
from grpo_pipeline.core.params import AlgorithmParams, PolicyLossParams, TrainingParams
from grpo_pipeline.core.policy_gradient.denominators import (
    StepDenominators,
    add,
    all_reduce_counts,
    count,
)
from grpo_pipeline.core.policy_gradient.kl import count_kl
from grpo_pipeline.core.training.execution import network_precision
from grpo_pipeline.core.training.micro_batches import (
    bounds,
    count_prompts,
    join_prompts,
    take_prompts,
)
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import ReferenceScores, Rollouts, Scores
from grpo_pipeline.pipelines.step.collect import Experience, Report, StepShare, scores_kl
from grpo_pipeline.tasks.base import Proposal, Task


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
    if algorithm.policy_loss is None:
        return tuple(
            replace(one, share=StepShare(i, shares[i], None, None))
            for i, one in enumerate(micro_batches)
        )
    # One denominator for each term of the step, known before the first micro-batch is computed.
    counted = add(*(_count(algorithm, algorithm.policy_loss, task, one) for one in micro_batches))
    found = all_reduce_counts(counted, gradient_reduction="sum")
    rollout_kl = (
        torch.stack([_count_kl(algorithm.policy_loss, one) for one in micro_batches])
        .sum()
        .clamp(min=1)
    )
    return tuple(
        replace(one, share=StepShare(i, shares[i], found, rollout_kl))
        for i, one in enumerate(micro_batches)
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
    algorithm: AlgorithmParams, params: PolicyLossParams, task: Task, micro_batch: Experience
) -> StepDenominators:
    found = count(
        micro_batch.rollouts.is_valid,
        ratio_level=params.ratio_level,
        reduction=params.reduction,
        returns=micro_batch.rewards.total.nanmean(1),
        max_decisions=params.options.max_decisions,
    )
    of_prompts = algorithm.kl_estimator == "exact" and not scores_kl(task)
    return found if of_prompts else replace(found, kl=_count_kl(params, micro_batch))


def _count_kl(params: PolicyLossParams, micro_batch: Experience) -> Tensor:
    is_valid, longest = micro_batch.rollouts.is_valid, params.max_decisions
    return count_kl(
        is_valid, ratio_level=params.ratio_level, reduction=params.reduction, max_decisions=longest
    )


# A task whose networks see one micro-batch at a time: the collect half of a step in less memory, through the same nodes.
#
# Samples are drawn for the whole batch from the joined encoding, so that they are those of a step without micro-batches.
# Everything else runs by micro-batches of the same prompts as in the update, and leaves no graph behind.


class InMicroBatches:
    """A task like another one, but that encodes, decodes and scores ``size`` prompts at once, without a graph."""

    def __init__(self, task: Task, size: int) -> None:
        self._task, self._size = task, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def encode(self, policy: Any, batch: Any) -> Any:
        """Return the encoding of the batch, cut off from the graph.

        Computed with a graph that is dropped at once: without one an encoder may choose other kernels, and the ratio of the first
        update would differ from 1 in its last bits.
        """
        encoded = (self._task.encode(policy, *micro_batch) for micro_batch in self._cut(batch))
        return join_prompts([self._task.detach(context) for context in encoded])

    def sample(
        self,
        policy: Any,
        context: Any,
        group_size: int,
        *,
        temperature: float,
        proposal: Proposal,
        generator: Generator,
    ) -> Rollouts:
        """Draw for the whole batch; the policy's own samples get their log-probabilities by micro-batches, as the update will."""
        sampled = self._task.sample(
            policy,
            context,
            group_size,
            temperature=temperature,
            proposal=proposal,
            generator=generator,
        )
        if proposal != "policy":
            return sampled
        return replace(
            sampled, logprobs=self.score(policy, context, sampled, temperature=temperature).logprobs
        )

    @torch.no_grad()
    def decode(self, policy: Any, context: Any, rollouts: Rollouts, batch: Any) -> Any:
        """Return what the samples lead to."""
        return join_prompts(
            [
                self._task.decode(policy, *micro_batch)
                for micro_batch in self._cut(context, rollouts, batch)
            ]
        )

    @torch.no_grad()
    def score(self, policy: Any, context: Any, rollouts: Rollouts, *, temperature: float) -> Scores:
        """Return what the policy says about the actions."""
        scored = [
            self._task.score(policy, *micro_batch, temperature=temperature)
            for micro_batch in self._cut(context, rollouts)
        ]
        return cast(Scores, join_prompts(scored))

    @torch.no_grad()
    def score_reference(
        self, reference: Any, batch: Any, rollouts: Rollouts, *, temperature: float
    ) -> ReferenceScores:
        """Return what the reference says about the actions."""
        # The reference encodes the batch itself, so that it is cut like the rollouts.
        cut = self._cut(batch, rollouts)
        scored = [
            self._task.score_reference(reference, *micro_batch, temperature=temperature)
            for micro_batch in cut
        ]
        return cast(ReferenceScores, join_prompts(scored))

    def reward(
        self, batch: Any, rollouts: Rollouts, outcomes: Any
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the task's reward components of the whole batch."""
        return self._task.reward(batch, rollouts, outcomes)

    @torch.no_grad()
    def subset_rewards(
        self, policy: Any, context: Any, rollouts: Rollouts, batch: Any, *, kept: Tensor
    ) -> Tensor:
        """Return what parts of the samples would have earned."""
        cut = self._cut(context, rollouts, batch)
        return torch.cat(
            [self._task.subset_rewards(policy, *micro_batch, kept=kept) for micro_batch in cut]
        )

    def _cut(self, *values: Any) -> Iterator[tuple[Any, ...]]:
        for place in bounds(count_prompts(values[-1]), self._size):
            yield tuple(take_prompts(value, *place) for value in values)
