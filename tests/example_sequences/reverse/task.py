"""Write a word backwards, letter by letter, and stop: a sample is a sequence that ends by a decision of its own."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from grpo_pipeline.core.groups import replicate
from grpo_pipeline.core.rng import Stream, drawn_on_the_cpu, step_generator
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.core.types import Rollouts, Scores
from grpo_pipeline.statistics.mean_metric import mean_metric
from grpo_pipeline.statistics.metric import MetricSuite, Unit
from grpo_pipeline.tasks.base import BaseTask
from reverse.spec import ModelParams

LETTERS = "abcd"
STOP, BEGIN = 4, 5  # an action is a letter, 0..3, or the stop; BEGIN stands before the first one and is never drawn
LONGEST = 5  # decisions: four letters and the stop


@dataclass(frozen=True)
class Words:
    """Words: row i of the table (word, split)."""

    table: pd.DataFrame


@dataclass(frozen=True)
class Batch:
    """A batch; every tensor has the prompts first."""

    rows: Tensor  # [P]
    word: Tensor  # [P, LONGEST], the letters, then stops
    target: Tensor  # [P, LONGEST], the letters backwards, then stops


class Writer(nn.Module):
    """A recurrent network that has read the word and writes one letter after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.read, self.head = nn.Linear(LONGEST * 5, width), nn.Linear(width, 5)
        self.letter, self.cell = nn.Embedding(6, width), nn.GRUCell(width, width)

    def begin(self, word: Tensor) -> Tensor:
        """Return the state after reading, [P, width]."""
        return self.read(one_hot(word, 5).float().flatten(1)).tanh()

    def step(self, state: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next state and the logits [N, 5], from the letter before [N]."""
        state = self.cell(self.letter(before), state)
        return state, self.head(state)


@dataclass(frozen=True)
class ReverseTask(BaseTask):
    """The methods that every task writes; an exact KL, a mean over letters, and a start are its own."""

    model: ModelParams
    device: torch.device = torch.device("cpu")  # noqa: RUF009
    start: ModelWeights | None = field(default=None, repr=False)  # what a stage before the arms ends with
    name: str = "reverse"
    reward_weights: ClassVar = {"exact": 0.5, "letters": 0.5}

    def build_policy(self, seed):
        with drawn_on_the_cpu(seed):
            policy = Writer(self.model.width)
        if self.start is not None:
            policy.load_state_dict(dict(self.start.tensors))
        return policy.to(self.device)

    def rows(self, data, split):
        return np.flatnonzero(data.table["split"].to_numpy() == split)

    def make_batch(self, data, rows, *, generator=None):
        words = data.table["word"].to_numpy()[rows]
        found = [torch.as_tensor(rows), _encoded(words), _encoded([word[::-1] for word in words])]
        return Batch(*(x.to(self.device) for x in found))

    def replicate(self, batch, group_size):
        return replace(batch, target=replicate(batch.target, group_size))  # what the network reads stays per prompt

    @torch.no_grad()
    def sample(self, policy, context, group_size, *, temperature, proposal, generator):
        state = replicate(policy.begin(context.word), group_size).flatten(0, 1)  # [N, width], row n = p * G + g
        before, is_open = torch.full((len(state),), BEGIN, device=self.device), torch.ones(len(state), dtype=torch.bool)
        actions = before.new_zeros(len(context.word), group_size, 0)  # proposal "none": no decision, L = 0
        for _ in range(LONGEST if proposal != "none" else 0):
            state, logits = policy.step(state, before)
            drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]
            # After the stop nothing is drawn any more: the rest is filled with stops, which are no decisions.
            before = torch.where(is_open.to(self.device), drawn, STOP)
            is_open = is_open.to(self.device) & (before != STOP)
            actions = torch.cat([actions, before.reshape(*actions.shape[:2], 1)], dim=2)
        return self._rollouts(policy, context, actions, temperature)

    def score(self, policy, context, rollouts, *, temperature):
        log_p = _log_p(policy, context.word, rollouts.actions, temperature)  # [P, G, L, 5]
        logprobs, is_valid = _taken(log_p, rollouts), rollouts.is_valid
        entropy = -(log_p.exp() * log_p).sum(-1) * is_valid  # [P, G, L], analytic, of each decision that was taken
        return Scores(logprobs, entropy.sum((1, 2)) / is_valid.sum((1, 2)))  # entropy: [P], the mean of a decision

    def score_with_kl(self, policy, context, rollouts, *, reference, temperature):
        """Five choices are few: KL(policy || reference) of each decision is a sum over them."""
        log_p = _log_p(policy, context.word, rollouts.actions, temperature)
        with torch.no_grad():
            log_q = _log_p(reference, context.word, rollouts.actions, temperature)
        kl = (log_p.exp() * (log_p - log_q)).sum(-1) * rollouts.is_valid
        return replace(self.score(policy, context, rollouts, temperature=temperature), kl=kl)

    def reward(self, batch, rollouts, outcomes):
        if not rollouts.actions.shape[-1]:
            return dict.fromkeys(self.reward_weights, _not_scored(rollouts)), self.reward_weights
        is_right = (rollouts.actions == batch.target) & rollouts.is_valid  # [P, G, L]
        needed = torch.maximum(_length(batch.target), rollouts.is_valid.sum(-1))  # [P, G], letters and stop
        exact = (rollouts.actions == batch.target).all(-1)
        return {"exact": exact.double(), "letters": is_right.sum(-1).double() / needed}, self.reward_weights

    def supervised_counts(self, batch):
        target = batch.target if batch.target.ndim == 2 else batch.target[:, 0]
        return _length(target).sum().double()[None]  # the loss is a mean over letters

    def supervised_loss(self, policy, context, batch, outcomes, shares=None):
        target = context.target[:, None]  # the target as one sample, [P, 1, LONGEST]
        rollouts = Rollouts(target, torch.zeros(target.shape), _until_stop(target))
        log_p = _log_p(policy, context.word, target, 1.0)
        loss = -_taken(log_p, rollouts).sum() / rollouts.is_valid.sum()
        return loss if shares is None else loss * shares[0].float()

    @torch.no_grad()
    def evaluate(self, policy, data, rows, *, seed, n_samples):
        batch, frames = self.make_batch(data, rows), []
        generator = step_generator(seed, stream=Stream.EVALUATION, device=self.device)
        drawn = self.sample(policy, batch, n_samples, temperature=1.0, proposal="policy", generator=generator)
        for rule, found in {"policy": drawn, "copy": self._rollouts(policy, batch, batch.word[:, None], 1.0)}.items():
            parts, weights = self.reward(self.replicate(batch, found.actions.shape[1]), found, ())
            means = {name: part.mean(1).cpu().numpy() for name, part in parts.items()}
            frame = pd.DataFrame({"word": data.table["word"].to_numpy()[rows], "rule": rule, **means})
            frames.append(frame.assign(reward=sum(weights[name] * mean for name, mean in means.items())))
        return pd.concat(frames, ignore_index=True)

    def _rollouts(self, policy, context, actions, temperature):
        rollouts = Rollouts(actions, torch.zeros(actions.shape, device=self.device), _until_stop(actions))
        if not actions.shape[-1]:
            return rollouts
        # The function that scores says with which probability they were drawn: a ratio begins at 1.
        return replace(rollouts, logprobs=_taken(_log_p(policy, context.word, actions, temperature), rollouts))


def _encoded(words: Any) -> Tensor:
    return torch.tensor([[LETTERS.index(c) for c in word] + [STOP] * (LONGEST - len(word)) for word in words])


def _log_p(policy: Writer, word: Tensor, actions: Tensor, temperature: float) -> Tensor:
    """Return the log-probability of every choice at every place, given the actions before it, [P, G, L, 5]."""
    state = replicate(policy.begin(word), actions.shape[1]).flatten(0, 1)
    before, found = torch.full((len(state),), BEGIN, device=word.device), []
    for place in actions.flatten(0, 1).unbind(1):
        state, logits = policy.step(state, before)
        before = place
        found.append(logits / temperature)
    return torch.stack(found, 1).log_softmax(-1).unflatten(0, actions.shape[:2])


def _taken(log_p: Tensor, rollouts: Rollouts) -> Tensor:
    """Return the log-probabilities of the actions, [P, G, L]; 0 after the stop."""
    return log_p.gather(-1, rollouts.actions[..., None])[..., 0].masked_fill(~rollouts.is_valid, 0.0)


def _until_stop(actions: Tensor) -> Tensor:
    """Return which decisions were taken: all up to the first stop, which is one itself, bool [..., L]."""
    is_stop = (actions == STOP).int()
    return is_stop.cumsum(-1) - is_stop == 0


def _length(target: Tensor) -> Tensor:
    return _until_stop(target).sum(-1)


def _not_scored(rollouts: Rollouts) -> Tensor:
    return torch.full(rollouts.actions.shape[:2], torch.nan, dtype=torch.float64, device=rollouts.actions.device)


def build_suite(options: Any) -> MetricSuite:
    """Return the metrics of the prediction rows."""
    titles = {"exact": "Words without a mistake", "letters": "Right letters", "reward": "Reward"}
    metrics = {name: mean_metric(name, title=title, better="higher", reason="no rows") for name, title in titles.items()}
    return MetricSuite(Unit("word", noun="word", facts=()), metrics, rules=("policy", "copy"))
