"""Random inputs of the conformance tests, float64, drawn anew from a seed wherever they are needed.

Only raw uniform numbers and integers are drawn, whose stream NumPy keeps; ``digest`` says whether it did. The kinds of a set
take turns, so that any prefix of it holds all of them.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

CASES = 216
LOSS_KINDS = (
    "plain",
    "ragged",
    "holes",
    "masked rows",
    "all masked",
    "far ratios",
    "zero advantages",
    "one decision",
    "poisoned padding",
)
REWARD_KINDS = ("plain", "missing", "lone sample", "unscored group", "large offset", "pairs")
GAE_KINDS = ("plain", "episodes", "one step", "short memory", "undiscounted", "all done")
LOGIT_KINDS = ("plain", "peaked", "large", "two choices")


@dataclass(frozen=True)
class LossCase:
    """Stored rollouts: log-probabilities [P, G, L] of now, of the rollout and of the reference, advantages [P, G]."""

    kind: str
    logprobs: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    advantages: Tensor
    is_valid: Tensor

    @property
    def entropies(self) -> Tensor:
        """Stand-ins [P, G, L], at least 0 and exact in float32, which an oracle rounds to."""
        return -self.ref_logprobs.float().double().clamp(max=0.0)


@dataclass(frozen=True)
class RewardCase:
    """Rewards in two parts with weights; NaN where a part was not scored. ``parts`` is [P, G, 2], ``weights`` [2]."""

    kind: str
    parts: Tensor
    weights: Tensor

    @property
    def lengths(self) -> Tensor:
        """Lengths of the samples, int64 [P, G], 1 to 5."""
        prompts, group = (torch.arange(size) for size in self.parts.shape[:2])
        return 1 + (prompts[:, None] + 2 * group) % 5


@dataclass(frozen=True)
class GaeCase:
    """Rewards [B, T], values [B, T + 1], dones [B, T], and what the outputs are weighted with before the gradient is taken."""

    kind: str
    rewards: Tensor
    values: Tensor
    dones: Tensor
    cotangent: Tensor
    gamma: float
    gae_lambda: float


@dataclass(frozen=True)
class LogitsCase:
    """Logits [B, T, V] as hidden states [B, T, D] times weights [V, D], the actions taken [B, T], a temperature."""

    kind: str
    hidden: Tensor
    weight: Tensor
    actions: Tensor
    cotangent: Tensor
    temperature: float


def loss_case(rng: np.random.Generator, kind: str) -> LossCase:
    """Draw rollouts: ratios up to exp(0.5), for "far ratios" up to exp(20)."""
    prompts, group, length = _between(rng, 1, 3), _between(rng, 2, 4), 1 if kind == "one decision" else _between(rng, 2, 5)
    shape = (prompts, group, length)
    logprobs = _uniform(rng, shape, -6.0, 0.0)
    spread = 20.0 if kind == "far ratios" else 0.5
    old, ref = (logprobs + _uniform(rng, shape, -size, size) for size in (spread, 1.0))
    advantages = _uniform(rng, shape[:2], -2.0, 2.0)
    if kind == "zero advantages":
        advantages[rng.random(shape[:2]) < 0.5] = 0.0
    is_valid = _mask(rng, shape, kind)
    if kind == "poisoned padding":
        logprobs[~is_valid] = -np.inf
        old[~is_valid] = 0.0
    return LossCase(kind, *map(torch.from_numpy, (logprobs, old, ref, advantages, is_valid)))


def on_policy_case(rng: np.random.Generator, kind: str) -> LossCase:
    """Draw rollouts of the present policy: every ratio is exactly 1."""
    case = loss_case(rng, kind)
    return replace(case, old_logprobs=case.logprobs)


def reward_case(rng: np.random.Generator, kind: str) -> RewardCase:
    """Draw rewards whose groups do not tie; those have a set of their own."""
    prompts, group = _between(rng, 2, 4), 2 if kind == "pairs" else _between(rng, 3, 6)
    parts = _uniform(rng, (prompts, group, 2), -1.0, 1.0)
    if kind == "large offset":
        parts += 1000.0
    if kind == "missing":
        # The first two samples keep both parts: no group falls silent by chance.
        parts[:, 2:][rng.random((prompts, group - 2, 2)) < 0.4] = np.nan
    if kind == "lone sample":
        parts[0, 1:] = np.nan
    if kind == "unscored group":
        parts[0] = np.nan
    return RewardCase(kind, torch.from_numpy(parts), torch.from_numpy(_uniform(rng, (2,), 0.25, 2.0)))


def tied_reward_case(rng: np.random.Generator, kind: str) -> RewardCase:
    """Draw rewards whose first group gives all of its samples one reward."""
    case = reward_case(rng, "plain")
    parts = case.parts.clone()
    parts[0] = torch.from_numpy(_uniform(rng, (2,), -1.0, 1.0))
    return replace(case, kind=kind, parts=parts)


def gae_case(rng: np.random.Generator, kind: str) -> GaeCase:
    """Draw trajectories of up to 40 steps; "short memory" has a product gamma * lambda of at most 0.25."""
    batch, time = _between(rng, 1, 3), 1 if kind == "one step" else _between(rng, 2, 40)
    rewards, values = _uniform(rng, (batch, time), -1.0, 1.0), _uniform(rng, (batch, time + 1), -2.0, 2.0)
    share = {"episodes": 0.2, "short memory": 0.05, "all done": 1.1}.get(kind, 0.0)
    dones, cotangent = rng.random((batch, time)) < share, _uniform(rng, (batch, time), -1.0, 1.0)
    low, high = (0.1, 0.5) if kind == "short memory" else (0.9, 0.999)
    gamma, gae_lambda = _uniform(rng, (2,), low, high).tolist() if kind != "undiscounted" else (1.0, 1.0)
    return GaeCase(kind, *map(torch.from_numpy, (rewards, values, dones, cotangent)), gamma=gamma, gae_lambda=gae_lambda)


def logits_case(rng: np.random.Generator, kind: str) -> LogitsCase:
    """Draw a linear head of up to 30 choices; "peaked" and "large" logits reach about 50 and 1000."""
    batch, time, width = _between(rng, 1, 3), _between(rng, 1, 5), _between(rng, 2, 4)
    choices = 2 if kind == "two choices" else _between(rng, 3, 30)
    size = {"peaked": 5.0, "large": 20.0}.get(kind, 1.0)
    hidden, weight = _uniform(rng, (batch, time, width), -size, size), _uniform(rng, (choices, width), -size, size)
    actions, cotangent = rng.integers(0, choices, (batch, time)), _uniform(rng, (2, batch, time), -1.0, 1.0)
    temperature = float(_uniform(rng, (1,), 0.5, 2.0)[0])
    return LogitsCase(kind, *map(torch.from_numpy, (hidden, weight, actions, cotangent)), temperature=temperature)


DRAWN: Mapping[str, tuple[int, Sequence[str], Callable[[np.random.Generator, str], Any]]] = {
    "losses": (1, LOSS_KINDS, loss_case),
    "rewards": (2, REWARD_KINDS, reward_case),
    "tied rewards": (3, ("tied",), tied_reward_case),
    "trajectories": (4, GAE_KINDS, gae_case),
    "on-policy losses": (6, ("plain", "ragged", "holes"), on_policy_case),
    "logits": (5, LOGIT_KINDS, logits_case),
}


def draw(name: str, count: int = CASES) -> list[Any]:
    """Return the first cases of a set, the same ones at every call."""
    seed, kinds, make = DRAWN[name]
    return [make(np.random.default_rng([seed, number]), kinds[number % len(kinds)]) for number in range(count)]


def digest(cases: Sequence[Any]) -> str:
    """Return the SHA-256 of all numbers in the cases."""
    found = hashlib.sha256()
    for case in cases:
        for value in (getattr(case, field.name) for field in fields(case)):
            found.update(value.numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode())
    return found.hexdigest()


def _mask(rng: np.random.Generator, shape: tuple[int, int, int], kind: str) -> np.ndarray:
    steps, lengths = np.arange(shape[2]), rng.integers(1, shape[2] + 1, shape[:2])
    if kind in ("ragged", "far ratios", "poisoned padding"):
        return steps < lengths[..., None]
    if kind == "holes":
        return (rng.random(shape) < 0.6) | (steps == 0)
    if kind == "masked rows":
        lengths[0, rng.random(shape[1]) < 0.5] = 0
        lengths[0, 0] = 0
        return steps < lengths[..., None]
    return np.full(shape, kind != "all masked")


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    return low + (high - low) * rng.random(shape)


def _between(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw an integer from low to high, both included."""
    return int(rng.integers(low, high + 1))
