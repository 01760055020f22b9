"""The values that travel between the functions of ``core``: frozen, shaped, and free of any task's words.

Axes: P prompts, G samples per prompt, L decisions per sample, V choices per decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from grpo_pipeline.core.replay import ReplayBuffer


@dataclass(frozen=True)
class Rollouts:
    """Samples as they were drawn; an update replays these actions and never draws new ones.

    Attributes:
        actions: int64 [P, G, L], the index of each choice, 0..V-1; V where a sample stops (``core.stopping``) and after it.
        logprobs: [P, G, L], log-probability of each action under the policy that drew it, nats, detached.
        is_valid: bool [P, G, L], True where a decision was really taken (False for padding).
    """

    actions: Tensor
    logprobs: Tensor
    is_valid: Tensor


@dataclass(frozen=True)
class Scores:
    """Log-probabilities and values of stored rollouts under the present policy, with gradient.

    Attributes:
        logprobs: [P, G, L], log-probability of exactly the stored actions, nats.
        entropy: [P], analytic entropy of the distribution of one decision, nats.
        log_probs_full: [P, V], log of the whole categorical, -inf where not allowed; None where V is large.
        values: [P], predicted reward of each prompt; None without a value head.
        kl: [P, G, L], exact KL(policy || reference) of each decision; None where it was not asked for.
    """

    logprobs: Tensor
    entropy: Tensor
    log_probs_full: Tensor | None = None
    values: Tensor | None = None
    kl: Tensor | None = None


@dataclass(frozen=True)
class ReferenceScores:
    """Log-probabilities of stored rollouts under the reference policy, without gradient; empty where no KL is paid.

    Attributes:
        logprobs: [P, G, L], log-probability of exactly the stored actions, nats.
        log_probs_full: [P, V], log of the whole categorical, -inf where not allowed; None where V is large.
    """

    logprobs: Tensor | None = None
    log_probs_full: Tensor | None = None


@dataclass(frozen=True)
class Rewards:
    """Named parts of the reward and their weighted sum.

    Attributes:
        parts: name -> [P, G], detached; NaN where a sample was not scored.
        total: float64 [P, G]; NaN where no part was scored.
        weights: name -> what each part counts in the total.
        kl_penalty: float64 [P, G], what the KL to the reference took off the total; None where it is not paid in the reward.
    """

    parts: Mapping[str, Tensor]
    total: Tensor
    weights: Mapping[str, float] = field(default_factory=dict)
    kl_penalty: Tensor | None = None


@dataclass(frozen=True)
class Advantages:
    """How much better each sample did than its baseline.

    Attributes:
        values: float64 [P, G], detached, finite; exactly 0 where a sample teaches nothing.
        is_tied: bool [P], True where all scored samples of the prompt earned the same reward.
    """

    values: Tensor
    is_tied: Tensor


@dataclass(frozen=True)
class TrainState:
    """Everything that training changes; ``dataclasses.replace`` moves the counters on.

    The modules inside are mutable and shared between successive states: only ``core.optim``, ``core.checkpoint.restore`` and
    ``core.reference.update_reference`` (the reference alone) write to them. The replay buffer is mutable too.

    Attributes:
        policy: the trained module.
        optimizer: the optimiser over the policy's parameters.
        reference: frozen copy of the policy, as it was at the start of RL or as a ``ReferenceRule`` moves it on, or None.
        step: batches used so far; the next batch has this number.
        epoch: passes over the data completed so far.
        generator_seed: seed from which every step's generator is derived.
        total_steps: batches of the whole run, the horizon of the schedules.
        replay: informative groups of past batches, or None.
        coefficients: numbers that training adapts, by name, such as the weight of the entropy.
        precision: in which its networks compute within a step, see ``core.precision``; the weights are float32.
    """

    policy: nn.Module
    optimizer: Optimizer
    reference: nn.Module | None
    step: int
    epoch: int
    generator_seed: int
    total_steps: int = 1
    replay: "ReplayBuffer | None" = None
    coefficients: Mapping[str, float] = field(default_factory=dict)
    precision: Literal["float32", "bf16"] = "float32"
