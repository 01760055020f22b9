"""Guess the digit in a picture: one prompt is a picture, one sample a guess, the reward is 1 if it is right."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from grpo_pipeline.core.rng import drawn_on_the_cpu
from grpo_pipeline.core.types import Rollouts, Scores
from grpo_pipeline.statistics.mean_metric import mean_metric
from grpo_pipeline.statistics.metric import MetricSuite, Unit
from grpo_pipeline.tasks.base import BaseTask

CPU = torch.device("cpu")


class ModelParams(BaseModel):
    """The network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: int


@dataclass(frozen=True)
class Digits:
    """Pictures: row i of the table (digit_id, label, split) owns pixels[i]."""

    table: pd.DataFrame
    pixels: np.ndarray  # float32 [n, 64], in 0..1


@dataclass(frozen=True)
class Batch:
    """A batch, which is also the context: nothing is encoded."""

    rows: Tensor  # [P]
    pixels: Tensor  # [P, 64]
    label: Tensor  # [P]


@dataclass(frozen=True)
class DigitsTask(BaseTask):
    """The eight methods that a task must have; all others are ``BaseTask``'s."""

    model: ModelParams
    device: torch.device = CPU
    name: str = "digits"
    reward_weights: ClassVar = {"right": 1.0}

    def build_policy(self, seed):
        with drawn_on_the_cpu(seed):
            return nn.Sequential(nn.Linear(64, self.model.hidden), nn.ReLU(), nn.Linear(self.model.hidden, 10))

    def rows(self, data, split):
        return np.flatnonzero(data.table["split"].to_numpy() == split)

    def make_batch(self, data, rows, *, generator=None):
        label = torch.as_tensor(data.table["label"].to_numpy()[rows])
        return Batch(torch.as_tensor(rows), torch.as_tensor(data.pixels[rows]), label)

    @torch.no_grad()
    def sample(self, policy, context, group_size, *, temperature, proposal, generator):
        logits = policy(context.pixels) / temperature  # [P, 10]
        guesses = torch.multinomial(logits.softmax(-1), group_size, replacement=True, generator=generator)  # [P, G]
        actions = guesses[..., None][..., : int(proposal != "none")]  # [P, G, L]: one decision, or none
        return Rollouts(actions, _logprobs(logits, actions), torch.ones_like(actions, dtype=torch.bool))

    def score(self, policy, context, rollouts, *, temperature):
        logits = policy(context.pixels) / temperature
        full = logits.log_softmax(-1)  # [P, 10]
        return Scores(_logprobs(logits, rollouts.actions), -(full.exp() * full).sum(-1), full)

    def reward(self, batch, rollouts, outcomes):
        # The batch is replicated: label is [P, G]. Without a decision the mean of nothing is NaN: not scored.
        return {"right": (rollouts.actions == batch.label[..., None]).double().mean(-1)}, self.reward_weights

    def supervised_loss(self, policy, context, batch, outcomes, shares=None):
        loss = cross_entropy(policy(context.pixels), context.label)
        return loss if shares is None else loss * shares[0]

    @torch.no_grad()
    def evaluate(self, policy, data, rows, *, seed, n_samples):
        batch = self.make_batch(data, rows)
        chances = {"policy": policy(batch.pixels).softmax(-1), "uniform": torch.full((len(rows), 10), 0.1)}
        table = data.table.iloc[rows][["digit_id", "label"]]
        right = {rule: p.gather(1, batch.label[:, None])[:, 0].numpy() for rule, p in chances.items()}
        best = {rule: (p.argmax(1) == batch.label).numpy() for rule, p in chances.items()}
        return pd.concat([table.assign(rule=rule, reward=right[rule], accuracy=1.0 * best[rule]) for rule in chances])


def _logprobs(logits: Tensor, actions: Tensor) -> Tensor:
    return logits.log_softmax(-1)[:, None].expand(-1, actions.shape[1], -1).gather(-1, actions)


def build_suite(options: Any) -> MetricSuite:
    """Return the metrics of the prediction rows."""
    titles = {"accuracy": "Accuracy of the likeliest guess", "reward": "Chance of a right guess"}
    metrics = {name: mean_metric(name, title=title, better="higher", reason="no rows") for name, title in titles.items()}
    return MetricSuite(Unit("digit_id", noun="picture", facts=("label",)), metrics, rules=("policy", "uniform"))
