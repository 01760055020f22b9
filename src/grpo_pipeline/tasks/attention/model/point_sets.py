"""Distribution of a policy over point sets: draw sets, compute their log-probability, and its entropy.

Without ``model.policy.stop`` a set is k points, an ordered draw without replacement from the map (Plackett-Luce). With it a set
has ``min_points`` to k points. Decision i = 0..k-1 is then "stop, or go on and with which cell" (``sampling.stopping``):
from ``min_points`` on it stops with the odds

    P(stop) / P(go on) = exp(h_i) / (share of the map's mass that is left),   h_i from the stop head

and otherwise takes a cell a left with its probability among the cells left. Dividing by the mass left makes h_i mean the same
on every grid, and a policy that has placed its points where the map is sure stops sooner (docs/attention/points.md).

An action is the cell 0..V-1 of a point, V for the stop and the padding.
"""

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from grpo_pipeline.core.sampling.plackett_luce import (
    categorical_entropy,
    gumbel_top_k,
    independent_logprobs,
    log_policy,
    masked_logits,
    plackett_luce_logprobs,
    tempered_logits,
)
from grpo_pipeline.core.sampling.stopping import (
    greedy_with_stop,
    logprobs_with_stop,
    sample_with_stop,
)
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.model.params import ModelParams


@dataclass(frozen=True)
class SetLogits:
    """Logits of a policy over one image's points.

    Attributes:
        cells: [P, V], the attention map before the softmax.
        stops: [P, S], log odds h_i of stopping at decisions min_points..k-1; None where every set has k points.
    """

    cells: Tensor
    stops: Tensor | None = None

    def packed(self) -> Tensor:
        """Return map and log odds side by side, [P, V (+ S)]."""
        return self.cells if self.stops is None else torch.cat([self.cells, self.stops], 1)

    @classmethod
    def unpacked(cls, packed: Tensor, cells: int) -> "SetLogits":
        """Return what ``packed`` was made from; cells is V."""
        stops = packed[:, cells:]
        return cls(packed[:, :cells], stops if stops.shape[1] else None)


def draw_sets(
    params: ModelParams,
    logits: SetLogits,
    is_allowed: Tensor,
    group_size: int,
    *,
    temperature: float,
    generator: Generator,
) -> Rollouts:
    """Draw G sets for each image, with their log-probabilities.

    Args:
        params: of the model: points, stop and likelihood.
        logits: with stops None every set has k points.
        is_allowed: bool [P, V].
        group_size: G.
        temperature: divides the map's logits and the log odds.
        generator: the only source of randomness.

    Returns:
        actions [P, G, k]: cells, V for the stop and what comes after it; is_valid True up to and including the stop.
    """
    k = params.points
    if logits.stops is None:
        actions = gumbel_top_k(
            logits.cells,
            k,
            group_size,
            generator=generator,
            temperature=temperature,
            is_allowed=is_allowed,
        )
        is_valid = torch.ones_like(actions, dtype=torch.bool)
    else:
        actions, is_valid = sample_with_stop(
            logits.cells,
            _stop_logits(logits.cells, logits.stops, is_allowed, k, temperature),
            k,
            group_size,
            k_min=k - logits.stops.shape[1],
            generator=generator,
            temperature=temperature,
            is_allowed=is_allowed,
        )
    logprobs = score_sets(
        params, logits, actions, is_valid, temperature=temperature, is_allowed=is_allowed
    )
    return Rollouts(actions, logprobs, is_valid)


def score_sets(
    params: ModelParams,
    logits: SetLogits,
    actions: Tensor,
    is_valid: Tensor,
    *,
    temperature: float,
    is_allowed: Tensor,
) -> Tensor:
    """Return the log-probability of each decision of these sets, [P, G, k]; exactly 0 where a decision is not valid.

    Whatever stands in ``actions`` after a stop is not read.
    """
    if logits.stops is None:
        score = (
            independent_logprobs
            if params.policy.likelihood == "independent"
            else plackett_luce_logprobs
        )
        return score(logits.cells, actions, temperature=temperature, is_allowed=is_allowed)
    k = actions.shape[-1]
    return logprobs_with_stop(
        logits.cells,
        _stop_logits(logits.cells, logits.stops, is_allowed, k, temperature),
        actions.masked_fill(~is_valid, is_allowed.shape[1]),
        k_min=k - logits.stops.shape[1],
        temperature=temperature,
        is_allowed=is_allowed,
    )


def likeliest_sets(params: ModelParams, logits: SetLogits, is_allowed: Tensor) -> Tensor:
    """Return the set that takes the likelier way at each decision, int64 [P, 1, k]: see ``greedy_with_stop``.

    A point goes to the likeliest cell left.
    """
    k = params.points
    if logits.stops is None:
        return logits.cells.masked_fill(~is_allowed, -torch.inf).topk(k).indices[:, None]
    stop_logits = _stop_logits(logits.cells, logits.stops, is_allowed, k, 1.0)
    k_min = k - logits.stops.shape[1]
    return greedy_with_stop(logits.cells, stop_logits, k, k_min=k_min, is_allowed=is_allowed)[0]


def set_entropy(logits: SetLogits, is_allowed: Tensor, *, temperature: float) -> Tensor:
    """Return the analytic entropy of the first draw and of the stops, [P], nats.

        H = H(map) + sum_i H(Bernoulli(sigmoid(h_i / temperature)))

    Exact for the first point and the answers "would you stop after i points, with the whole map left", which are independent.
    It is not the entropy of the whole set: that would have to be averaged over the points already taken.
    """
    entropy = categorical_entropy(logits.cells, is_allowed, temperature=temperature)
    if logits.stops is None:
        return entropy
    h = logits.stops / temperature
    return entropy - (h.sigmoid() * F.logsigmoid(h) + (-h).sigmoid() * F.logsigmoid(-h)).sum(dim=-1)


def factor_logprobs(logits: SetLogits, is_allowed: Tensor, *, temperature: float) -> Tensor:
    """Return the independent factors of the first decisions side by side: the map, then P(stop) and P(go on), S each.

    Entropy and KL of a product are the sums over its factors, so ``categorical_kl`` of two such rows is exact for the first
    point and the stops of ``set_entropy``. Every factor sums to 1, the row to 1 + S.
    """
    first = log_policy(logits.cells, is_allowed, temperature=temperature)
    if logits.stops is None:
        return first
    h = logits.stops / temperature
    return torch.cat([first, F.logsigmoid(h), F.logsigmoid(-h)], dim=1)


def chosen_points(rollouts: Rollouts, cells: int) -> Rollouts:
    """Return the points alone: ``is_valid`` is False for stops and padding, and the cell there is 0 of 0..cells-1."""
    is_point = rollouts.is_valid & (rollouts.actions < cells)
    return replace(rollouts, actions=rollouts.actions.masked_fill(~is_point, 0), is_valid=is_point)


def _stop_logits(
    cells: Tensor, stops: Tensor, is_allowed: Tensor, k: int, temperature: float
) -> Tensor:
    """Return the stop logits [P, k] of ``core.sampling.stopping``, where a stop competes with the cells left in one softmax.

    h + T * log(sum exp(z / T)) divided by T is h / T beside the log of the whole map's mass; no stop is read before min_points.
    """
    places = tempered_logits(cells, temperature)
    mass = masked_logits(places, is_allowed).logsumexp(dim=-1, keepdim=True)
    return F.pad(stops + temperature * mass, (k - stops.shape[1], 0))


def empty_sets(n_prompts: int, group_size: int, *, device: torch.device) -> Rollouts:
    """Return G sets of no point for each prompt: actions [P, G, 0]."""
    actions = torch.empty(n_prompts, group_size, 0, dtype=torch.int64, device=device)
    return Rollouts(
        actions=actions,
        logprobs=torch.empty(actions.shape, device=device),
        is_valid=torch.empty(actions.shape, dtype=torch.bool, device=device),
    )
