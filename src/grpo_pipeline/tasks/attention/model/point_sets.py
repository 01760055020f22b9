"""Distribution of a policy over point sets: draw sets, compute their log-probability, and its entropy.

Without ``attention.model.stop`` a set is k points, an ordered draw without replacement from the map (Plackett-Luce). With it
a set has ``min_points`` to k points. Decision i = 0..k-1 is then "stop, or go on and with which cell" (``sampling.stopping``):
from ``min_points`` on it stops with the odds

    P(stop) / P(go on) = exp(h_i) / (share of the map's mass that is left),   h_i from the stop head

and otherwise takes a cell a left with its probability among the cells left. Dividing by the mass left makes h_i mean the same
on every grid, and a policy that has placed its points where the map is sure stops sooner (docs/points.md).

With ``attention.model.point_labels: both`` a choice is a cell and a label, 2V of them, and a cell that is taken is out with both:

    P(cell a, label y | cells left) = exp(z_ay) / sum over cells left, both labels of exp(z)
                                    = exp(m_a) / (sum over cells left of exp(m)) * P(y | a),   m_a = log sum_y exp(z_ay)

so that the draw is Plackett-Luce over the cells by m, and each label is drawn by itself given its cell. An action is the cell
0..V-1 of a foreground point, V for the stop and the padding, and V + 1 + cell for a background point.
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
from grpo_pipeline.tasks.attention.params import ModelParams


@dataclass(frozen=True)
class SetLogits:
    """Logits of a policy over one image's points.

    Attributes:
        cells: [P, V], the map of foreground points before the softmax.
        stops: [P, S], log odds h_i of stopping at decisions min_points..k-1; None where every set has k points.
        background: [P, V], the same of background points; None where every point is of the foreground.
    """

    cells: Tensor
    stops: Tensor | None = None
    background: Tensor | None = None

    def choices(self) -> Tensor:
        """Return the logits of all choices of the first decision, [P, V] or [P, 2V]."""
        return (
            self.cells if self.background is None else torch.cat([self.cells, self.background], 1)
        )

    def places(self, temperature: float = 1.0) -> Tensor:
        """Return the attention map before the softmax, [P, V]: of a point in a cell, whatever its label.

        T * log sum_y exp(z_y / T): divided by the temperature T, as everything that reads it does, it is exact.
        """
        if self.background is None:
            return self.cells
        z = (tempered_logits(x, temperature) for x in (self.cells, self.background))
        return temperature * torch.logaddexp(*z)

    def packed(self) -> Tensor:
        """Return maps and log odds side by side, [P, V (+ V) (+ S)]."""
        return self.choices() if self.stops is None else torch.cat([self.choices(), self.stops], 1)

    @classmethod
    def unpacked(cls, packed: Tensor, cells: int, *, labels: int = 1) -> "SetLogits":
        """Return what ``packed`` was made from; cells is V, labels 2 with background points."""
        maps, stops = packed[:, : labels * cells], packed[:, labels * cells :]
        background = maps[:, cells:] if labels == 2 else None
        return cls(maps[:, :cells], stops if stops.shape[1] else None, background)


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
        actions [P, G, k]: cells, V for the stop and what comes after it, V + 1 + cell for background points; is_valid True up to
        and including the stop.
    """
    k, places = params.points, logits.places(temperature)
    if logits.stops is None:
        actions = gumbel_top_k(
            places,
            k,
            group_size,
            generator=generator,
            temperature=temperature,
            is_allowed=is_allowed,
        )
        is_valid = torch.ones_like(actions, dtype=torch.bool)
    else:
        actions, is_valid = sample_with_stop(
            places,
            _stop_logits(logits, is_allowed, k, temperature),
            k,
            group_size,
            k_min=k - logits.stops.shape[1],
            generator=generator,
            temperature=temperature,
            is_allowed=is_allowed,
        )
    odds = _background_odds(logits, actions, temperature)
    if odds is not None:
        chance = torch.rand(odds.shape, generator=generator, dtype=odds.dtype, device=odds.device)
        actions = _labelled(actions, chance < odds.sigmoid(), places.shape[1])
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
    places, k = logits.places(temperature), actions.shape[-1]
    cells, is_background = split_labels(actions, places.shape[1])
    if logits.stops is None:
        score = (
            independent_logprobs if params.likelihood == "independent" else plackett_luce_logprobs
        )
        logprobs = score(places, cells, temperature=temperature, is_allowed=is_allowed)
    else:
        logprobs = logprobs_with_stop(
            places,
            _stop_logits(logits, is_allowed, k, temperature),
            cells.masked_fill(~is_valid, is_allowed.shape[1]),
            k_min=k - logits.stops.shape[1],
            temperature=temperature,
            is_allowed=is_allowed,
        )
    odds = _background_odds(logits, cells, temperature)
    if odds is None:
        return logprobs
    is_point = is_valid & (cells < places.shape[1])
    of_labels = F.logsigmoid(torch.where(is_background, odds, -odds))
    return logprobs + of_labels.masked_fill(~is_point, 0.0)


def likeliest_sets(params: ModelParams, logits: SetLogits, is_allowed: Tensor) -> Tensor:
    """Return the set that takes the likelier way at each decision, int64 [P, 1, k]: see ``greedy_with_stop``.

    A point goes to the likeliest cell left, and has the label that is likelier there.
    """
    k, places = params.points, logits.places()
    if logits.stops is None:
        actions = places.masked_fill(~is_allowed, -torch.inf).topk(k).indices[:, None]
    else:
        stop_logits = _stop_logits(logits, is_allowed, k, 1.0)
        actions, _ = greedy_with_stop(
            places, stop_logits, k, k_min=k - logits.stops.shape[1], is_allowed=is_allowed
        )
    odds = _background_odds(logits, actions, 1.0)
    return actions if odds is None else _labelled(actions, odds > 0, places.shape[1])


def set_entropy(logits: SetLogits, is_allowed: Tensor, *, temperature: float) -> Tensor:
    """Return the analytic entropy of the first draw and of the stops, [P], nats.

        H = H(map) + sum_i H(Bernoulli(sigmoid(h_i / temperature)))

    Exact for the first point and the answers "would you stop after i points, with the whole map left", which are independent.
    With background points the map is that of the 2V choices. It is not the entropy of the whole set: that would have to be
    averaged over the points already taken.
    """
    allowed = _allowed_choices(logits, is_allowed)
    entropy = categorical_entropy(logits.choices(), allowed, temperature=temperature)
    if logits.stops is None:
        return entropy
    h = logits.stops / temperature
    return entropy - (h.sigmoid() * F.logsigmoid(h) + (-h).sigmoid() * F.logsigmoid(-h)).sum(dim=-1)


def factor_logprobs(logits: SetLogits, is_allowed: Tensor, *, temperature: float) -> Tensor:
    """Return the independent factors of the first decisions side by side: the map, then P(stop) and P(go on), S each.

    Entropy and KL of a product are the sums over its factors, so ``categorical_kl`` of two such rows is exact for the first
    point and the stops of ``set_entropy``. The map has V choices, or 2V. Every factor sums to 1, the row to 1 + S.
    """
    allowed = _allowed_choices(logits, is_allowed)
    first = log_policy(logits.choices(), allowed, temperature=temperature)
    if logits.stops is None:
        return first
    h = logits.stops / temperature
    return torch.cat([first, F.logsigmoid(h), F.logsigmoid(-h)], dim=1)


def chosen_points(rollouts: Rollouts, cells: int) -> Rollouts:
    """Return the sets as foreground points alone: ``is_valid`` is False for all else, and the cell there is 0 of 0..cells-1."""
    is_point = rollouts.is_valid & (rollouts.actions < cells)
    return replace(rollouts, actions=rollouts.actions.masked_fill(~is_point, 0), is_valid=is_point)


def placed_points(rollouts: Rollouts, cells: int) -> tuple[Rollouts, Tensor]:
    """Return the points of both labels as ``chosen_points`` does, and which are of the background, bool [P, G, k]."""
    actions, is_background = split_labels(rollouts.actions, cells)
    return chosen_points(
        replace(rollouts, actions=actions), cells
    ), is_background & rollouts.is_valid


def split_labels(actions: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """Return the cell of each action, V for the stop and the padding, and which are of the background, bool: same shape."""
    is_background = actions > cells
    return torch.where(is_background, actions - (cells + 1), actions), is_background


def _labelled(actions: Tensor, is_background: Tensor, cells: int) -> Tensor:
    """Return the actions with those points that are of the background as such; the stop V has no label."""
    return torch.where(is_background & (actions < cells), actions + (cells + 1), actions)


def _background_odds(logits: SetLogits, cells: Tensor, temperature: float) -> Tensor | None:
    """Return the log odds that the point in each of these cells [P, G, k] is of the background; None without such points."""
    if logits.background is None:
        return None
    odds = tempered_logits(logits.background - logits.cells, temperature)
    place = cells.clamp(max=odds.shape[1] - 1)  # a stop has no cell, and its odds are not read
    return odds.gather(1, place.flatten(1)).reshape(cells.shape)


def _allowed_choices(logits: SetLogits, is_allowed: Tensor) -> Tensor:
    return is_allowed if logits.background is None else torch.cat([is_allowed, is_allowed], 1)


def points_component(placed: Rollouts) -> Tensor:
    """Return the reward component ``points``, -(number of points) / k of each sample, float [P, G]; 0 for sets of k = 0.

    Args:
        placed: of ``placed_points``: a background point costs as much.
    """
    return -placed.is_valid.float().sum(dim=-1) / max(1, placed.is_valid.shape[-1])


def _stop_logits(logits: SetLogits, is_allowed: Tensor, k: int, temperature: float) -> Tensor:
    """Return the stop logits [P, k] of ``core.sampling.stopping``, where a stop competes with the cells left in one softmax.

    h + T * log(sum exp(z / T)) divided by T is h / T beside the log of the whole map's mass; no stop is read before min_points.
    """
    stops = logits.stops
    if stops is None:
        raise ValueError(
            "stops must be given for a policy that may stop, got None; build the model with attention.model.stop"
        )
    places = tempered_logits(logits.places(temperature), temperature)
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
