"""A task whose networks see one micro-batch at a time: the collect half of a step in less memory, through the same nodes.

Samples are drawn for the whole batch from the joined encoding, so that they are those of a step without micro-batches.
Everything else runs by micro-batches of the same prompts as in the update, and leaves no graph behind.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Generator, Tensor

from grpo_pipeline.core.training.micro_batches import (
    bounds,
    count_prompts,
    join_prompts,
    take_prompts,
)
from grpo_pipeline.core.types import ReferenceScores, Rollouts, Scores
from grpo_pipeline.tasks.base import Proposal, Task


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
