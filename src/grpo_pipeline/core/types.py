"""Frozen dataclasses that the functions of ``core`` exchange, such as rollouts and scores, with the shapes of their tensors.

Axes: P prompts, G samples per prompt, L decisions per sample, V choices per decision.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

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
class Credits:
    """Shares of the reward that decisions are credited with (``rewards.credit_decisions``).

    Attributes:
        values: float64 [P, G, L], detached, in units of the reward; 0 where no decision was taken, NaN where not scored.
        is_valid: bool [P, G, L], True where a decision was really taken.
    """

    values: Tensor
    is_valid: Tensor


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


# Move between prompts [P, ...], groups [P, G, ...] and rows [N, ...] with N = P * G and row n = p * G + g.


def replicate(x: Tensor, group_size: int) -> Tensor:
    """Repeat each prompt for its samples, [P, ...] -> [P, G, ...], as an expanded view that copies nothing.

    Do not write into the result: its G samples share memory.
    """
    _check_group_size(group_size)
    return x.unsqueeze(1).expand(x.shape[0], group_size, *x.shape[1:])


def to_rows(x: Tensor) -> Tensor:
    """Flatten groups to rows, [P, G, ...] -> [P * G, ...]; copies only if ``x`` is an expanded view."""
    if x.ndim < 2:
        raise ValueError(
            f"groups must have at least the two axes [P, G], got shape {tuple(x.shape)}; call replicate first"
        )
    return x.flatten(0, 1)


def to_groups(x: Tensor, group_size: int) -> Tensor:
    """Split rows into groups, [P * G, ...] -> [P, G, ...], a view where the memory allows.

    Raises:
        ValueError: if the number of rows is not a multiple of the group size.
    """
    _check_group_size(group_size)
    if x.shape[0] % group_size:
        raise ValueError(
            f"the number of rows must be a multiple of group_size {group_size}, got {x.shape[0]}; pass whole groups"
        )
    return x.reshape(x.shape[0] // group_size, group_size, *x.shape[1:])


def replicate_tree(tree: Any, group_size: int) -> Any:
    """Apply ``replicate`` to every tensor of a dataclass, mapping, list or tuple; other leaves stay as they are."""
    return map_tensors(tree, lambda x: replicate(x, group_size))


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a dataclass, mapping, list or tuple; other leaves stay as they are."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(value, change) for key, value in tree.items()}
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(
            tree,
            **{f.name: map_tensors(getattr(tree, f.name), change) for f in fields(tree) if f.init},
        )
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(value, change) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(value, change) for value in tree)
    return tree


def _check_group_size(group_size: int) -> None:
    if group_size < 1:
        raise ValueError(
            f"group_size must be at least 1, got {group_size}; set it to the number of samples per prompt"
        )
