"""The smallest task with everything that an algorithm may read: a step takes milliseconds, so that thousands can be run.

Prompts are rows of an embedding; a sample is up to 3 choices of 5, where choice 0 ends it. The reward has two parts of unequal
spread, ties in some groups and differs by very little in others; the supervised loss reads what the samples lead to.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.sampling.plackett_luce import entropy_of
from grpo_pipeline.core.types import ReferenceScores, Rollouts, Scores

ROWS, CHOICES, LENGTH, WIDTH, F64 = 8, 5, 3, 4, torch.float64


class ChoicePolicy(nn.Module):
    """Features of a row, from them the logits of a choice, the value of the prompt, and a class from what was chosen."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shapes = {"embedding": (ROWS, WIDTH), "head": (WIDTH, CHOICES), "value": (WIDTH,), "chosen": (CHOICES + 1, WIDTH)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(0.7 * torch.randn(shape, dtype=F64, generator=generator)))


@dataclass(frozen=True)
class Choices:
    """A batch: row numbers, and the class of each."""

    rows: Tensor
    label: Tensor


@dataclass(frozen=True)
class Encoded:
    """Features [P, WIDTH] of the prompts."""

    features: Tensor


class TinyChoices:
    """The task; see ``tasks.base.Task`` for what the methods promise."""

    name, repeats_prompts, validated_by = "tiny", True, "reward/mean"
    components = ("encoder", "head")

    def check_algorithm(self, algorithm: AlgorithmParams) -> None:
        return None

    def check_data(self, data: Any) -> None:
        return None

    def build_policy(self, seed: int) -> ChoicePolicy:
        return ChoicePolicy(seed)

    def parameter_groups(self, policy: ChoicePolicy) -> dict[str, list[nn.Parameter]]:
        return {"encoder": [policy.embedding], "head": [policy.head, policy.value, policy.chosen]}

    def rows(self, data: Any, split: str) -> np.ndarray:
        return np.arange(ROWS)

    def make_batch(self, data: Any, rows: np.ndarray, *, generator: Generator | None = None) -> Choices:
        return Choices(torch.as_tensor(rows), torch.as_tensor(rows % 2).double())

    def replicate(self, batch: Choices, group_size: int) -> Choices:
        return batch

    def encode(self, policy: ChoicePolicy, batch: Choices) -> Encoded:
        return Encoded(policy.embedding[batch.rows])

    def detach(self, context: Encoded) -> Encoded:
        return Encoded(context.features.detach())

    @torch.no_grad()
    def sample(
        self, policy: ChoicePolicy, context: Encoded, group: int, *, temperature: float, proposal: str, generator: Generator
    ) -> Rollouts:
        prompts, length = len(context.features), 0 if proposal == "none" else LENGTH
        log_probs = self._log_probs(policy, context, temperature)
        drawn_from = log_probs if proposal == "policy" else torch.zeros_like(log_probs)
        if proposal == "oracle":
            drawn_from = drawn_from.clone()
            drawn_from[:, 3] = 2.0
        actions = torch.multinomial(drawn_from.softmax(-1), group * length or 1, replacement=True, generator=generator)
        actions = actions[:, : group * length].reshape(prompts, group, length)
        is_valid = ((actions == 0).cumsum(-1) - (actions == 0).long()) == 0
        actions = actions.masked_fill(~is_valid, CHOICES)
        return Rollouts(actions, self._of_actions(log_probs, actions, is_valid), is_valid)

    def decode(self, policy: ChoicePolicy, context: Encoded, rollouts: Rollouts, batch: Choices) -> Tensor:
        """Return the logit [P] of the class, from the features and the mean of what was chosen."""
        seen = policy.chosen[rollouts.actions].sum(2).mean(1)
        return (context.features * (1.0 + seen)).sum(-1)

    def reward(self, batch: Choices, rollouts: Rollouts, outcomes: Tensor) -> tuple[dict[str, Tensor], dict[str, float]]:
        return self.pay(batch, rollouts)

    def subset_rewards(self, policy: Any, context: Any, rollouts: Rollouts, batch: Choices, *, kept: Tensor) -> Tensor:
        is_valid = rollouts.is_valid[:, :, None] & kept  # [P, G, M, L]
        actions = rollouts.actions[:, :, None].masked_fill(~is_valid, CHOICES)
        parts = Rollouts(actions.flatten(1, 2), torch.empty(0), is_valid.flatten(1, 2))
        return combine_rewards(*self.pay(batch, parts)).total.reshape(is_valid.shape[:3])

    def turn_rewards(self, rollouts: Rollouts, batch: Choices) -> tuple[Tensor, Tensor]:
        """The first choice is a turn, and all later ones are the second."""
        first = torch.arange(LENGTH) < 1
        before = self.subset_rewards(None, None, rollouts, batch, kept=torch.stack((first & ~first, first)))
        turns = (~first).long().expand_as(rollouts.actions)
        return before - before[..., :1], turns.masked_fill(~rollouts.is_valid, -1)

    def pay(self, batch: Choices, rollouts: Rollouts) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Pay for choice 3 in whole numbers (ties are frequent), and for small choices with very little."""
        hits = (rollouts.actions == 3).sum(-1).double()
        small = -rollouts.actions.double().masked_fill(~rollouts.is_valid, 0.0).sum(-1) / LENGTH
        rare = (batch.rows % 4 != 1)[:, None]  # these prompts pay 3 and then a small choice alone: whole groups tie
        first, second = rollouts.actions[..., :1], rollouts.actions[..., 1:2]
        hits = torch.where(rare, ((first == 3) & (second < 3)).any(-1).double(), hits)
        return {"hits": hits, "small": torch.where(rare, 0.0, 0.01 * small)}, {"hits": 1.0, "small": 2.0}

    def score(self, policy: ChoicePolicy, context: Encoded, rollouts: Rollouts, *, temperature: float) -> Scores:
        log_probs = self._log_probs(policy, context, temperature)
        logprobs = self._of_actions(log_probs, rollouts.actions, rollouts.is_valid)
        entropy = entropy_of(log_probs)  # [P], of each choice
        entropies = entropy[:, None, None].expand_as(logprobs)
        return Scores(logprobs, entropy, log_probs, context.features @ policy.value, entropies=entropies)

    def prompt_weights(self, batch: Choices) -> None:
        return None

    def with_reference(self, data: Any, reference: Any) -> Any:
        return data

    @torch.no_grad()
    def score_reference(
        self, reference: ChoicePolicy, batch: Choices, rollouts: Rollouts, *, temperature: float
    ) -> ReferenceScores:
        scores = self.score(reference, self.encode(reference, batch), rollouts, temperature=temperature)
        return ReferenceScores(scores.logprobs, scores.log_probs_full)

    def supervised_counts(self, batch: Choices) -> Tensor:
        return torch.tensor([float(len(batch.rows))], dtype=F64)

    def supervised_loss(
        self, policy: ChoicePolicy, context: Encoded, batch: Choices, outcomes: Tensor, shares: Tensor | None = None
    ) -> Tensor:
        loss = nn.functional.binary_cross_entropy_with_logits(outcomes, batch.label)
        return loss if shares is None else loss * shares[0]

    def training_frame(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return {}

    def _log_probs(self, policy: ChoicePolicy, context: Encoded, temperature: float) -> Tensor:
        return (context.features @ policy.head / temperature).log_softmax(-1)

    def _of_actions(self, log_probs: Tensor, actions: Tensor, is_valid: Tensor) -> Tensor:
        known = actions.masked_fill(~is_valid, 0).flatten(1)
        return log_probs.gather(1, known).reshape(actions.shape).masked_fill(~is_valid, 0.0)


def own_rates(training: TrainingParams, rate: float) -> TrainingParams:
    """Return the parameters with this rate for the components of the task, and for no others."""
    optimizer = training.optimizer.model_copy(update={"learning_rates": dict.fromkeys(TinyChoices.components, rate)})
    return training.model_copy(update={"optimizer": optimizer})
