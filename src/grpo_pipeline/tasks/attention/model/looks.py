"""Place the points in several looks: after each the policy sees the mask of the points so far, and places the next ones.

With ``attention.model.looks: n`` above 1 the k decisions are n looks of k / n decisions each. Look l draws as a set would, from
the map that the policy has after it has seen the mask o_l of all points before, in the cells that are left:

    log p(trajectory) = sum over l of log p(points of look l | image, o_l, earlier points),   o_l = mask(image, earlier points)

The mask decoder is deterministic and adds no term. o_l is kept with the sample: an update asks the policy what it does where it
saw that, whatever the decoder has become (docs/points.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from grpo_pipeline.core.sampling.plackett_luce import masked_logits, tempered_logits
from grpo_pipeline.core.sampling.stopping import decisions_taken
from grpo_pipeline.core.types import Rollouts, Scores
from grpo_pipeline.tasks.attention.model.point_sets import (
    SetLogits,
    draw_sets,
    factor_logprobs,
    likeliest_sets,
    score_sets,
    set_entropy,
    split_labels,
)
from grpo_pipeline.tasks.attention.params import ModelParams


@dataclass(frozen=True)
class LookRollouts(Rollouts):
    """Sets of points that were placed in several looks.

    Attributes:
        seen: [P, G, n - 1, V], what the policy saw before each look but the first: how sure the mask decoder was of each cell.
    """

    seen: Tensor


Again = Callable[[Tensor], SetLogits]
See = Callable[[Rollouts], Tensor]


def look_by_look(
    params: ModelParams,
    first: SetLogits,
    again: Again,
    region: Tensor,
    group_size: int,
    *,
    see: See,
    temperature: float,
    generator: Generator | None,
) -> LookRollouts:
    """Draw G sets for each image in ``params.looks`` looks, with their log-probabilities.

    Args:
        params: of the model.
        first: what the policy says before it has seen a mask, of P images.
        again: returns what it says after it has seen the masks [P, G, V], of the P * G sets.
        region: bool [P, V], the cells that are allowed.
        group_size: G.
        see: returns the masks [P, G, V] of the points that are placed so far.
        temperature: divides all logits.
        generator: the only source of randomness; None takes the likelier way at each decision.

    Returns:
        As ``draw_sets``, with the masks.
    """
    size = params.points // params.looks
    n_prompts, cells = region.shape
    empty = torch.zeros(n_prompts, group_size, 0, device=region.device)
    drawn = Rollouts(empty.long(), empty, empty.bool())
    seen: list[Tensor] = []
    for look in range(params.looks):
        if look:
            seen.append(see(drawn))
        logits, left = at_look(params, first, again, region, drawn.actions, seen)
        logits = _of_region(logits, region, left, temperature)
        group = group_size if look == 0 else 1
        if generator is None:
            actions = likeliest_sets(params, logits, left, k=size)
        else:
            actions = draw_sets(
                params, logits, left, group, temperature=temperature, generator=generator, k=size
            ).actions
        actions = actions.reshape(n_prompts, -1, size).expand(-1, group_size, -1)
        has_stopped = (drawn.actions == cells).any(-1, keepdim=True)
        actions = torch.cat([drawn.actions, actions.masked_fill(has_stopped, cells)], dim=2)
        drawn = Rollouts(actions, actions.float(), decisions_taken(actions, cells))
    trajectories = LookRollouts(drawn.actions, drawn.logprobs, drawn.is_valid, torch.stack(seen, 2))
    logprobs = score_looks(
        params, first, again, region, trajectories, temperature=temperature
    ).logprobs
    return replace(trajectories, logprobs=logprobs)


def score_looks(
    params: ModelParams,
    first: SetLogits,
    again: Again,
    region: Tensor,
    rollouts: LookRollouts,
    *,
    temperature: float,
) -> Scores:
    """Return the log-probabilities of these trajectories, and entropy and full distribution of the first decision of each look.

        H = H(first look) + sum over later looks of mean_g H(look given what g saw, cells left),   H of a look: ``set_entropy``

    ``log_probs_full`` are the factors of ``factor_logprobs`` of the first look, then those of the later looks, each a mean over
    the G samples: log p - log G, so that a KL of two such rows is the sum of the looks' KLs, exact given what was seen.

    Args:
        params: of the model.
        first: of ``look_by_look``.
        again: of ``look_by_look``.
        region: bool [P, V].
        rollouts: [P, G, k] with the masks that were seen.
        temperature: as when they were drawn.
    """
    size, (n_prompts, group_size, _) = params.points // params.looks, rollouts.actions.shape
    actions = rollouts.actions.masked_fill(~rollouts.is_valid, region.shape[1])
    seen = list(rollouts.seen.unbind(2))
    logprobs, entropies, factors = [], [], []
    for look in range(params.looks):
        place = slice(look * size, (look + 1) * size)
        earlier = actions[..., : place.start]
        logits, left = at_look(params, first, again, region, earlier, seen[:look])
        rows = (n_prompts, -1, size) if look == 0 else (n_prompts * group_size, 1, size)
        is_valid = rollouts.is_valid[..., place]
        of_look = score_sets(
            params,
            _of_region(logits, region, left, temperature),
            actions[..., place].reshape(rows),
            is_valid.reshape(rows),
            temperature=temperature,
            is_allowed=left,
        )
        # A set that has stopped in an earlier look takes no decision here.
        logprobs.append(of_look.reshape(is_valid.shape).masked_fill(~is_valid, 0.0))
        samples = group_size if look else 1
        entropy = set_entropy(logits, left, temperature=temperature)
        entropies.append(entropy.reshape(n_prompts, samples).mean(1))
        full = factor_logprobs(logits, left, temperature=temperature).reshape(n_prompts, -1)
        factors.append(full - math.log(samples))
    return Scores(
        logprobs=torch.cat(logprobs, dim=2),
        entropy=torch.stack(entropies).sum(0),
        log_probs_full=torch.cat(factors, dim=1),
    )


def at_look(
    params: ModelParams,
    first: SetLogits,
    again: Again,
    region: Tensor,
    earlier: Tensor,
    seen: list[Tensor],
) -> tuple[SetLogits, Tensor]:
    """Return the logits of the look that follows the actions ``earlier`` [P, G, d], and the cells left: P rows, then P * G.

    ``seen`` are the masks [P, G, V] before each look so far but the first; the other arguments are those of ``look_by_look``.
    """
    start, size, cells = earlier.shape[2], params.points // params.looks, region.shape[1]
    logits, left = first, region
    if start:
        logits = again(seen[-1])
        taken = torch.zeros(*earlier.shape[:2], cells + 1, dtype=torch.bool, device=region.device)
        taken.scatter_(2, split_labels(earlier, cells)[0], True)
        left = (region[:, None] & ~taken[..., :-1]).flatten(0, 1)
    if logits.stops is None:
        return logits, left
    least = params.points - logits.stops.shape[1]
    stops = logits.stops[:, max(0, start - least) : max(0, start + size - least)]
    return replace(logits, stops=stops if stops.shape[1] else None), left


def _of_region(logits: SetLogits, region: Tensor, left: Tensor, temperature: float) -> SetLogits:
    """Return the logits with stops that are weighed against the mass of the whole region, of which earlier looks have taken some.

    Without it the share of the mass that is left would be 1 again at the beginning of each look.
    """
    if logits.stops is None:
        return logits
    places = tempered_logits(logits.places(temperature), temperature)
    whole = region.repeat_interleave(len(left) // len(region), 0)
    of_whole, of_left = (masked_logits(places, x).logsumexp(1, keepdim=True) for x in (whole, left))
    return replace(logits, stops=logits.stops + temperature * (of_whole - of_left))
