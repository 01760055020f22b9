"""Draw k choices without replacement, and score the ordered draw exactly.

How this differs from public versions: the likelihood is that of the ordered draw without replacement (Plackett-Luce), not the
sum of k independent log-softmax values; and no denominator is found by subtraction, so that it stays exact when one choice
holds nearly all of the mass.
"""

import torch
from torch import Tensor
from torch.nn import functional

# Draws with replacement per choice wanted: with 4, spread-out logits seldom need the slow way.
DRAWS_PER_CHOICE = 4


def tempered_logits(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / temperature.

    Raises:
        ValueError: if the temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature must be above 0, got {temperature}; use the arg-max for greedy choices"
        )
    return logits if temperature == 1.0 else logits / temperature


def masked_logits(logits: Tensor, is_allowed: Tensor) -> Tensor:
    """Set the logits [..., V] of choices that are not allowed to -inf.

    Raises:
        ValueError: if a row allows no choice at all (names the row).
    """
    check_allowed(is_allowed, 1)
    return logits.masked_fill(~is_allowed, -float("inf"))


def log_policy(logits: Tensor, is_allowed: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log of the categorical softmax(logits / temperature) over the allowed choices.

    Args:
        logits: [P, V], finite where allowed.
        is_allowed: bool [P, V].
        temperature: divides the logits, above 0; the same number in sampler and scorer.

    Returns:
        [P, V], -inf where not allowed.
    """
    return masked_logits(tempered_logits(logits, temperature), is_allowed).log_softmax(dim=-1)


def categorical_entropy(logits: Tensor, is_allowed: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the analytic entropy of the masked categorical, in nats.

        H = - sum over allowed v of p_v * log p_v

    Args:
        logits: [P, V].
        is_allowed: bool [P, V].
        temperature: divides the logits.

    Returns:
        [P], between 0 and log(number of allowed choices).
    """
    return entropy_of(log_policy(logits, is_allowed, temperature))


def entropy_of(log_probs: Tensor) -> Tensor:
    """Return the entropy [P] of normalised log-probabilities [P, V]; entries at -inf contribute exactly 0."""
    safe = log_probs.masked_fill(log_probs == -float("inf"), 0.0)
    return -(log_probs.exp() * safe).sum(dim=-1)


@torch.no_grad()
def gumbel_top_k(
    logits: Tensor,
    k: int,
    group_size: int,
    *,
    generator: torch.Generator,
    temperature: float = 1.0,
    is_allowed: Tensor,
) -> Tensor:
    """Draw G ordered sets of k choices without replacement for each row.

    The indices of the k largest of logits / temperature + Gumbel noise, in order: a draw from the Plackett-Luce
    distribution. Source: Kool et al., arXiv 1903.06059, section 2. The largest is a categorical draw, and each next one a
    categorical draw from the cells left; so independent draws with repeats thrown away give the same distribution from a few
    random numbers per sample instead of one per cell. A sample that finds too few cells that way (one cell holds nearly all
    mass) draws the missing ones with noise on every cell that is left.

    Args:
        logits: [P, V], finite where allowed.
        k: choices per sample.
        group_size: samples G per row.
        generator: the only source of randomness; on the device of the logits.
        temperature: divides the logits.
        is_allowed: bool [P, V].

    Returns:
        int64 [P, G, k], in the order of the draw.

    Raises:
        ValueError: if a row allows fewer than k choices (names the row), or k or the temperature is not positive.
    """
    check_allowed(is_allowed, k)
    z = masked_logits(tempered_logits(logits, temperature), is_allowed)
    actions, is_found = _first_distinct(
        _draws_with_replacement(z, DRAWS_PER_CHOICE * k, group_size, generator), k
    )  # [P, G, k]
    p, g = (~is_found).any(dim=-1).nonzero(as_tuple=True)  # [n], samples with too few cells
    # The missing ends are drawn from the cells left; what follows does not depend on how the start was found.
    if len(p):
        start, is_drawn = actions[p, g], is_found[p, g]  # [n, k]
        left = z[p].scatter(1, start, -float("inf"))  # [n, V]
        rest = perturbed_top_k(left, k, 1, generator=generator)[:, 0]  # [n, k]
        position = torch.arange(k, device=z.device) - is_drawn.sum(dim=-1, keepdim=True)  # [n, k]
        actions[p, g] = torch.where(is_drawn, start, rest.gather(1, position.clamp_min(0)))
    return actions


@torch.no_grad()
def perturbed_top_k(z: Tensor, k: int, group_size: int, *, generator: torch.Generator) -> Tensor:
    """Return the indices [P, G, k] of the k largest of z [P, V] + Gumbel noise; excluded cells (-inf) come last."""
    return (
        (
            z.unsqueeze(1)
            + gumbel_noise((z.shape[0], group_size, z.shape[1]), like=z, generator=generator)
        )
        .topk(k)
        .indices
    )


def gumbel_noise(shape: tuple[int, ...], *, like: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard Gumbel noise -log(E), E exponential; always finite, in the dtype and on the device of ``like``.

    A draw of exactly E = 0, which some generators give, would turn a logit of -inf into NaN, and NaN wins every comparison
    (test_a_choice_that_is_not_allowed_is_never_drawn).
    """
    exponential = like.new_empty(shape).exponential_(generator=generator)
    return exponential.clamp_min_(torch.finfo(like.dtype).tiny).log_().neg_()


def plackett_luce_logprobs(
    logits: Tensor, actions: Tensor, *, temperature: float = 1.0, is_allowed: Tensor
) -> Tensor:
    """Return the exact log-probability of each choice of an ordered draw without replacement.

        l_i = z_{a_i} - log( sum over cells not taken before i of exp(z) ),   z = logits / temperature

    The denominators are built from the back: the cells that are never taken, plus a_{k-1}, plus a_{k-2}, ...  All terms
    are added, none subtracted (test_is_exact_when_one_cell_holds_nearly_all_mass).

    Args:
        logits: [P, V], finite where allowed.
        actions: int64 [P, G, k], distinct within a sample.
        temperature: divides the logits.
        is_allowed: bool [P, V].

    Returns:
        [P, G, k], differentiable with respect to the logits; -inf for a choice that is not allowed. The sum over k is the
        log-probability of the whole ordered set.

    Raises:
        ValueError: if a sample takes a choice twice (names the row and the sample).
    """
    z = masked_logits(tempered_logits(logits, temperature), is_allowed)
    p, g, k = actions.shape
    is_taken = torch.zeros(p, g, z.shape[1], dtype=torch.bool, device=z.device).scatter_(
        2, actions, True
    )  # [P, G, V]
    is_repeated = is_taken.sum(dim=-1) != k  # [P, G]
    if bool(is_repeated.any()):
        row, sample = is_repeated.nonzero()[0].tolist()
        raise ValueError(
            f"actions must be distinct, got a repeat in row {row}, sample {sample}; draw without replacement"
        )
    z_taken = z.gather(1, actions.reshape(p, g * k)).reshape(p, g, k)  # [P, G, k]
    return z_taken - log_remaining(z, z_taken, is_taken)


def independent_logprobs(
    logits: Tensor, actions: Tensor, *, temperature: float = 1.0, is_allowed: Tensor
) -> Tensor:
    """Return what independent draws would give each choice of a draw without replacement: a known defect, for an ablation.

        l_i = z_{a_i} - log( sum over all allowed cells of exp(z) ),   z = logits / temperature

    Public versions add these up although a cell is never drawn twice. The probabilities of all ordered sets then sum to less
    than 1, the more so the more peaked the map is, and the gradient is that of another policy: -log of the missing mass is
    not constant. Use ``plackett_luce_logprobs`` to train.

    Args:
        logits: [P, V], finite where allowed.
        actions: int64 [P, G, k].
        temperature: divides the logits.
        is_allowed: bool [P, V].

    Returns:
        [P, G, k], differentiable with respect to the logits; -inf for a choice that is not allowed.
    """
    p, g, k = actions.shape
    return (
        log_policy(logits, is_allowed, temperature)
        .gather(1, actions.reshape(p, g * k))  # [P, G * k]
        .reshape(p, g, k)
    )


def log_remaining(z: Tensor, z_taken: Tensor, is_taken: Tensor) -> Tensor:
    """Return log( sum over cells not taken before decision i of exp(z) ) for every decision of an ordered draw.

    Args:
        z: [P, V], -inf where not allowed.
        z_taken: [P, G, k], z of the cell that each decision takes; -inf for a decision that takes none.
        is_taken: bool [P, G, V], True for the cells that the sample takes.

    Returns:
        [P, G, k]; -inf where no cell is left: there the gradient is NaN, but only towards cells that are masked, which drop it
        (test_a_row_with_fewer_cells_than_k_max_stops_for_certain_when_none_is_left).
    """
    remaining = z.unsqueeze(1).masked_fill(is_taken, -float("inf")).logsumexp(dim=-1)  # [P, G]
    logs = []
    # From the last decision to the first: the cell that decision i takes was still there before it.
    for i in reversed(range(z_taken.shape[-1])):
        remaining = torch.logaddexp(remaining, z_taken[..., i])
        logs.append(remaining)
    return torch.stack(logs[::-1], dim=-1)  # [P, G, k]


def _draws_with_replacement(
    z: Tensor, count: int, group_size: int, generator: torch.Generator
) -> Tensor:
    """Draw int64 [P, G, count] independently from softmax(z), z [P, V], by inverting the distribution function in float64."""
    mass = z.to(torch.float64).softmax(dim=-1).cumsum(dim=-1)
    # Divided by itself the end is exactly 1, above every uniform number: no excluded cell at the end can be hit.
    distribution = mass / mass[:, -1:]
    uniform = torch.rand(
        z.shape[0], group_size * count, generator=generator, dtype=torch.float64, device=z.device
    )  # [P, G * count]
    # The first cell whose distribution function lies above the uniform number.
    cells = torch.searchsorted(distribution, uniform, right=True)
    # Only NaN logits are clamped; the loss refuses them.
    return cells.clamp_max_(z.shape[1] - 1).reshape(-1, group_size, count)


def _first_distinct(drawn: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the first k distinct values of drawn [..., R] in their order, and whether they are there, [..., k] each.

    Where fewer than k values are distinct, the end holds repeats and is False.
    """
    ranked, order = drawn.sort(dim=-1, stable=True)
    repeats = functional.pad(ranked[..., 1:] == ranked[..., :-1], (1, 0))  # [..., R]
    # Back in the order of the draw: True where the value was drawn before.
    is_repeat = torch.zeros_like(repeats).scatter_(-1, order, repeats)
    # A stable sort of False before True brings the places of distinct values to the front.
    first = is_repeat.to(torch.uint8).sort(dim=-1, stable=True).indices[..., :k]  # [..., k]
    return drawn.gather(-1, first), ~is_repeat.gather(-1, first)


def check_allowed(is_allowed: Tensor, k: int) -> None:
    """Raise unless every row of is_allowed [..., V] allows at least k choices, k >= 1.

    Raises:
        ValueError: names the row, counted over all leading axes.
    """
    if k < 1:
        raise ValueError(
            f"the number of choices must be at least 1, got {k}; set it to the number of decisions per sample"
        )
    counts = is_allowed.sum(dim=-1)
    is_short = counts.reshape(-1) < k
    if bool(is_short.any()):
        row = int(is_short.nonzero()[0])
        raise ValueError(
            f"row {row} must allow at least {k} choices, got {int(counts.reshape(-1)[row])}; choose fewer or widen its mask"
        )
