"""Draw ordered choices without replacement, with a decision to stop after each, and score such draws exactly.

At decision i, with the cells of the earlier decisions taken, one softmax holds the cells that are left and, from ``k_min``
points on, a stop with its own logit s_i:

    P(take a) = exp(z_a) / (R_i + exp(s_i))      P(stop) = exp(s_i) / (R_i + exp(s_i))      R_i = sum over cells left of exp(z)

How this differs from public versions: nothing is drawn step by step. P(take a) is P(not stop) times the Plackett-Luce
probability exp(z_a) / R_i, so the order of all K cells is drawn at once and the stops are drawn given that order.
"""

import torch
from torch import Tensor
from torch.nn import functional

from grpo_pipeline.core.sampling.plackett_luce import (
    check_allowed,
    log_remaining,
    masked_logits,
    perturbed_top_k,
    tempered_logits,
)


@torch.no_grad()
def sample_with_stop(
    logits: Tensor,
    stop_logits: Tensor,
    k_max: int,
    group_size: int,
    *,
    k_min: int = 1,
    generator: torch.Generator,
    temperature: float = 1.0,
    is_allowed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw G ordered sets of k_min to k_max choices without replacement for each row.

    Args:
        logits: [P, V], finite where allowed.
        stop_logits: [P], or [P, K] with one logit for each of the K = k_max decisions; finite.
        k_max: most choices per sample; after that many the sample ends without a stop decision.
        group_size: samples G per row.
        k_min: fewest choices per sample, at least 0; the stop is not among the choices before.
        generator: the only source of randomness; on the device of the logits.
        temperature: divides the logits and the stop logits, above 0.
        is_allowed: bool [P, V]; a row may allow fewer than k_max cells: where none is left, the stop is certain.

    Returns:
        actions: int64 [P, G, K], cells 0..V-1 in the order of the draw; V is the stop, and the padding after it.
        is_valid: bool [P, G, K], True for the decisions taken, the stop among them; False for the padding.

    Raises:
        ValueError: if 0 <= k_min <= k_max <= V does not hold, k_max is 0, the temperature is not positive, the stop logits
            have another shape, or a row allows fewer than k_min cells, or none (names the row).
    """
    z, stops = _tempered(logits, stop_logits, k_max, k_min, temperature, is_allowed)
    order = perturbed_top_k(z, k_max, group_size, generator=generator)  # [P, G, K]
    # The stops are drawn given the order; from the first one on there are only padding actions.
    p_stop = _stop_log_odds(z, stops, order).sigmoid()  # [P, G, K]
    is_stop = torch.rand(p_stop.shape, generator=generator, dtype=z.dtype, device=z.device) < p_stop
    actions = order.masked_fill(is_stop.cummax(dim=-1).values, z.shape[1])
    return actions, decisions_taken(actions, z.shape[1])


@torch.no_grad()
def greedy_with_stop(
    logits: Tensor, stop_logits: Tensor, k_max: int, *, k_min: int = 1, is_allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """Take the likelier of stopping and going on at each decision, and the likeliest cell left wherever it goes on.

        stop at decision i  if  s_i > log R_i, that is P(stop) > 1/2

    The stop is weighed against all cells left together, not against the best of them: on a flat map of V cells even a
    policy that goes on with probability 0.9 would otherwise stop.

    Args:
        logits: [P, V], finite where allowed.
        stop_logits: [P] or [P, K], finite.
        k_max: as in ``sample_with_stop``.
        k_min: as in ``sample_with_stop``.
        is_allowed: bool [P, V].

    Returns:
        actions int64 [P, 1, K] and is_valid bool [P, 1, K], as ``sample_with_stop`` does.

    Raises:
        ValueError: as ``sample_with_stop``.
    """
    z, stops = _tempered(logits, stop_logits, k_max, k_min, 1.0, is_allowed)
    order = z.topk(k_max).indices.unsqueeze(1)  # [P, 1, K]
    is_stop = _stop_log_odds(z, stops, order) > 0
    actions = order.masked_fill(is_stop.cummax(dim=-1).values, z.shape[1])
    return actions, decisions_taken(actions, z.shape[1])


def logprobs_with_stop(
    logits: Tensor,
    stop_logits: Tensor,
    actions: Tensor,
    *,
    k_min: int = 1,
    temperature: float = 1.0,
    is_allowed: Tensor,
) -> Tensor:
    """Return the exact log-probability of each decision of a draw that can stop.

        l_i = z_{a_i} - log(R_i + exp(s_i)) for a cell,     l_i = s_i - log(R_i + exp(s_i)) for the stop

    R_i is added up from the back as in ``plackett_luce_logprobs``, never found by subtraction; exp(s_i) counts from
    decision k_min on.

    Args:
        logits: [P, V], finite where allowed.
        stop_logits: [P] or [P, K], finite.
        actions: int64 [P, G, K], as ``sample_with_stop`` returns them.
        k_min: as at sampling time.
        temperature: as at sampling time.
        is_allowed: bool [P, V], as at sampling time.

    Returns:
        [P, G, K], differentiable with respect to both logits; exactly 0 for the padding after the stop; -inf for a cell that
        is not allowed and for a stop before k_min. The sum over K is the log-probability of the whole draw.

    Raises:
        ValueError: as ``sample_with_stop``; if a sample takes a cell twice or takes one after its stop (names row and sample).
    """
    z, stops = _tempered(logits, stop_logits, actions.shape[-1], k_min, temperature, is_allowed)
    choices = z.shape[1]
    is_taken, is_valid = _taken(actions, choices), decisions_taken(actions, choices)
    is_cell = actions < is_taken.shape[-1]
    # A cell that is taken twice marks is_taken once, so that fewer cells are marked than taken.
    # [P, G]
    is_wrong = (is_taken.sum(dim=-1) != is_cell.sum(dim=-1)) | (is_cell & ~is_valid).any(dim=-1)
    if bool(is_wrong.any()):
        row, sample = is_wrong.nonzero()[0].tolist()
        raise ValueError(
            f"actions must be distinct and nothing but the stop after a stop, got {actions[row, sample].tolist()} in row {row}, "
            f"sample {sample}; replay what was drawn"
        )
    z_taken = _gather(z, actions)  # [P, G, K]
    s = stops.unsqueeze(1).expand(z_taken.shape)  # s_i: [P, G, K]
    total = torch.logaddexp(log_remaining(z, z_taken, is_taken), s)  # log(R_i + exp(s_i))
    return (torch.where(actions == choices, s, z_taken) - total).masked_fill(~is_valid, 0.0)


def decisions_taken(actions: Tensor, choices: int) -> Tensor:
    """Return is_valid [P, G, K]: True up to and including the first stop (the action ``choices``), False after it."""
    has_stopped = (actions == choices).cummax(dim=-1).values
    # Shifted by one decision, because the stop itself is a decision that was taken.
    return ~functional.pad(has_stopped[..., :-1], (1, 0), value=False)


def _tempered(
    logits: Tensor,
    stop_logits: Tensor,
    k_max: int,
    k_min: int,
    temperature: float,
    is_allowed: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return z [P, V] and the stop logits [P, K], -inf where the choice or the stop is not allowed."""
    p, choices = logits.shape
    if not (0 <= k_min <= k_max <= choices and k_max > 0):
        raise ValueError(
            f"k_min and k_max must satisfy 0 <= k_min <= k_max <= {choices} and k_max >= 1, got {k_min} and {k_max}; "
            "correct the number of choices per sample"
        )
    if stop_logits.shape not in ((p,), (p, k_max)):
        raise ValueError(
            f"stop_logits must have the shape ({p},) or ({p}, {k_max}), got {tuple(stop_logits.shape)}; "
            "give one per row, or one per row and decision"
        )
    check_allowed(is_allowed, max(k_min, 1))
    per_decision = stop_logits.reshape(p, -1).expand(p, k_max)  # [P, K]
    is_early = torch.arange(k_max, device=logits.device) < k_min  # [K]
    stops = tempered_logits(per_decision, temperature).masked_fill(is_early, -float("inf"))
    return masked_logits(tempered_logits(logits, temperature), is_allowed), stops


def _stop_log_odds(z: Tensor, stops: Tensor, order: Tensor) -> Tensor:
    """Return log P(stop) / P(go on) at each decision of an order [P, G, K]: s_i - log R_i."""
    return stops.unsqueeze(1) - log_remaining(z, _gather(z, order), _taken(order, z.shape[1]))


def _gather(z: Tensor, actions: Tensor) -> Tensor:
    """Return z of each action [P, G, K], -inf where the action is the stop."""
    p, g, k = actions.shape
    return (
        functional.pad(z, (0, 1), value=-float("inf"))  # [P, V + 1], the stop's column last
        .gather(1, actions.reshape(p, g * k))  # [P, G * K]
        .reshape(p, g, k)
    )


def _taken(actions: Tensor, choices: int) -> Tensor:
    """Return bool [P, G, V], True for the cells that a sample takes."""
    p, g, _ = actions.shape
    # Stops and padding mark a column of their own, [P, G, V + 1], which is cut off.
    return torch.zeros(p, g, choices + 1, dtype=torch.bool, device=actions.device).scatter_(
        2, actions, True
    )[..., :-1]
