"""A task whose networks see one micro-batch at a time: the collect half of a step in less memory, through the same nodes.

Samples are drawn for the whole batch from the joined encoding, so that they are those of a step without micro-batches. Everything
else runs by micro-batches of the same prompts as in the update, and leaves no graph behind.
"""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Generator, Tensor

from grpo_pipeline.core.micro_batches import bounds, count_prompts, join_prompts, take_prompts
from grpo_pipeline.core.types import ReferenceScores, Rollouts, Scores
from grpo_pipeline.tasks.protocol import Proposal, Task


class InParts:
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
        encoded = (self._task.encode(policy, take_prompts(batch, *part)) for part in self._parts(batch))
        return join_prompts([self._task.detach(context) for context in encoded])

    def sample(
        self, policy: Any, context: Any, group_size: int, *, temperature: float, proposal: Proposal, generator: Generator
    ) -> Rollouts:
        """Draw for the whole batch; the policy's own samples get their log-probabilities by micro-batches, as the update will."""
        drawn = self._task.sample(policy, context, group_size, temperature=temperature, proposal=proposal, generator=generator)
        if proposal != "policy":
            return drawn
        return replace(drawn, logprobs=self.score(policy, context, drawn, temperature=temperature).logprobs)

    @torch.no_grad()
    def decode(self, policy: Any, context: Any, rollouts: Rollouts, batch: Any) -> Any:
        """Return what the samples lead to."""
        parts = ((take_prompts(x, *part) for x in (context, rollouts, batch)) for part in self._parts(rollouts))
        return join_prompts([self._task.decode(policy, *part) for part in parts])

    @torch.no_grad()
    def score(self, policy: Any, context: Any, rollouts: Rollouts, *, temperature: float) -> Scores:
        """Return what the policy says about the actions."""
        parts = ((take_prompts(x, *part) for x in (context, rollouts)) for part in self._parts(rollouts))
        return cast(Scores, join_prompts([self._task.score(policy, *part, temperature=temperature) for part in parts]))

    @torch.no_grad()
    def score_reference(self, reference: Any, batch: Any, rollouts: Rollouts, *, temperature: float) -> ReferenceScores:
        """Return what the reference says about the actions."""
        parts = ((take_prompts(x, *part) for x in (batch, rollouts)) for part in self._parts(rollouts))
        scored = [self._task.score_reference(reference, *part, temperature=temperature) for part in parts]
        return cast(ReferenceScores, join_prompts(scored))

    def reward(self, batch: Any, rollouts: Rollouts, outcomes: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the task's reward parts of the whole batch."""
        return self._task.reward(batch, rollouts, outcomes)

    def _parts(self, value: Any) -> list[tuple[int, int]]:
        return bounds(count_prompts(value), self._size)


def work_in_parts(task: Task, size: int) -> Task:
    """Return the task for the collect half of a step with micro-batches of ``size`` prompts."""
    return cast(Task, InParts(task, size))
