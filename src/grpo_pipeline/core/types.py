"""Frozen dataclasses that the functions of ``core`` exchange, such as rollouts and scores, with the shapes of their tensors.

Axes: P prompts, G samples per prompt, L decisions per sample, V choices per decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Rollouts:
    """Samples as they were drawn; an update replays these actions and never draws new ones.

    Attributes:
        actions: int64 [P, G, L], the index of each choice, 0..V-1; V where a sample stops (``sampling.stopping``) and after it.
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
        entropies: [P, G, L], analytic entropy of each decision's distribution, nats; None where the task does not give them.
    """

    logprobs: Tensor
    entropy: Tensor
    log_probs_full: Tensor | None = None
    values: Tensor | None = None
    kl: Tensor | None = None
    entropies: Tensor | None = None


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
class Credits:
    """Shares of the reward that decisions, or turns of several decisions, are credited with (``core.credit``).

    Attributes:
        values: float64 [P, G, K], detached, in units of the reward, of K = L decisions or of K turns; 0 where no decision was
            taken, NaN where not scored.
        is_valid: bool [P, G, K], True where a decision was really taken.
        turns: int64 [P, G, L], the turn of each decision, -1 where none was taken; None where decisions have their own credits.
    """

    values: Tensor
    is_valid: Tensor
    turns: Tensor | None = None

    @property
    def is_taken(self) -> Tensor:
        """Mark the decisions that were really taken, bool [P, G, L]."""
        return self.is_valid if self.turns is None else self.turns >= 0


@dataclass(frozen=True)
class Rewards:
    """Named components of the reward and their weighted sum.

    Attributes:
        components: name -> [P, G], detached; NaN where a sample was not scored.
        total: float64 [P, G]; NaN where no component was scored.
        weights: name -> what each component counts in the total.
        kl_penalty: float64 [P, G], what the KL to the reference took off the total; None where it is not paid in the reward.
        credits: what each decision is credited with; None where all of a sample's share its total.
    """

    components: Mapping[str, Tensor]
    total: Tensor
    weights: Mapping[str, float] = field(default_factory=dict)
    kl_penalty: Tensor | None = None
    credits: Credits | None = None


@dataclass(frozen=True)
class Advantages:
    """How much better each sample, or each of its decisions, did than its baseline.

    Attributes:
        values: float64 [P, G], or [P, G, L] of decisions, detached, finite; exactly 0 where it teaches nothing.
        is_tied: bool [P], True where all scored samples of the prompt earned the same reward.
    """

    values: Tensor
    is_tied: Tensor
