"""Compute statistics of an update, such as clipped shares and ratios, for people to read; training does not use them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from grpo_pipeline.core.policy_gradient.algorithms import (
    ALGORITHMS,
    CLIPPED,
    DEFAULT_OPTIONS,
    Algorithm,
    LossOptions,
    RatioLevel,
    check_name,
    choose,
    with_clip,
)
from grpo_pipeline.core.policy_gradient.kl import unbounded_k3
from grpo_pipeline.core.policy_gradient.losses import UNITS, decision_units, per_unit

Gradient = Mapping[str, list[Tensor]]


@torch.no_grad()
def ratio_statistics(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    is_valid: Tensor,
    *,
    ratio_level: RatioLevel,
    clip_low: float | None = None,
    clip_high: float | None = None,
    algorithm: Algorithm = "grpo",
    options: LossOptions = DEFAULT_OPTIONS,
) -> dict[str, float]:
    """Summarise how far the present policy has moved from the one that drew the rollouts.

    A unit is what the algorithm's ratio belongs to: a decision, or a row for ``joint`` and ``sequence``.

    Args:
        logprobs: [P, G, L], present policy.
        old_logprobs: [P, G, L], as drawn.
        advantages: [P, G] or [P, G, L].
        is_valid: bool [P, G, L].
        ratio_level: as in ``policy_loss``.
        clip_low: as in ``policy_loss``.
        clip_high: as in ``policy_loss``.
        algorithm: as in ``policy_loss``; says what the clip does to a unit.
        options: as in ``policy_loss``.

    Returns:
        ``policy/ratio_mean`` and ``policy/ratio_max`` over valid units (1 at the first update), at most exp(20);
        ``policy/clip_low``, ``policy/clip_high``: share of valid units whose gradient the clip removes; for cispo, whose
        cap removes none, ``policy/clip_high`` is the share of capped ratios; exactly 0 where the algorithm has no such bound
        (reinforce and sapo both, cispo the lower one);
        ``policy/clip_dual``, only where delta or dual_clip is set: share of valid units with A < 0 that it holds;
        ``policy/ess``: (sum r)^2 / (n * sum r^2), the effective share of the samples, in (0, 1];
        ``kl/rollout``: mean of r - 1 - log r over valid units, unbiased for KL(rollout policy || present policy) because the
        actions came from the rollout policy. For ``sequence`` it is taken per decision: a length-normalised ratio is no
        likelihood ratio. Not to be mixed up with ``kl/reference``, see ``kl.py``.

    Raises:
        ValueError: if no unit is valid, or for an unknown name.
    """
    check_name(algorithm, ALGORITHMS, "algorithm")
    new, old = logprobs.double(), old_logprobs.double()
    units = choose(UNITS, ratio_level, "ratio_level")(new, old, is_valid)
    if not bool(units.is_valid.any()):
        raise ValueError(
            "at least one decision must be valid, got none; check the is_valid mask of the rollouts"
        )
    r = units.ratio[units.is_valid]  # [P, G, U] -> [n]
    a = per_unit(advantages).expand_as(units.log_ratio)[units.is_valid]  # [P, G, U] -> [n], as r
    # The effective share in units of the largest ratio, so that nothing under- or overflows.
    log_ratio = units.log_ratio[units.is_valid]  # [n]
    weights = (log_ratio - log_ratio.max()).exp()
    likelihoods = decision_units(new, old, is_valid) if ratio_level == "sequence" else units
    statistics = {
        "policy/ratio_mean": r.mean(),
        "policy/ratio_max": r.max(),
        **_clip_shares(r, a, algorithm, with_clip(options, clip_low, clip_high)),
        "policy/ess": weights.sum().square() / (weights.numel() * weights.square().sum()),
        "kl/rollout": unbounded_k3(likelihoods.log_ratio[likelihoods.is_valid]).mean(),
    }
    # One transfer from the device for all of them.
    return dict(zip(statistics, torch.stack(list(statistics.values())).tolist(), strict=True))


def _clip_shares(
    r: Tensor, a: Tensor, algorithm: Algorithm, options: LossOptions
) -> dict[str, Tensor]:
    """Return the shares of units [n] that the bounds of the algorithm hold."""
    held = {"policy/clip_low": torch.zeros_like(r), "policy/clip_high": torch.zeros_like(r)}
    if algorithm == "cispo":
        held["policy/clip_high"] = r > options.ratio_cap
    if algorithm in CLIPPED:
        held["policy/clip_low"] = (r < 1 - options.clip_low) & (a < 0)
        held["policy/clip_high"] = (r > 1 + options.clip_high) & (a > 0)
        bound = options.delta if options.delta is not None else options.dual_clip
        if bound is not None:
            held["policy/clip_dual"] = (r > bound) & (a < 0)
    return {name: mask.double().mean() for name, mask in held.items()}


def gradient_report(
    terms: Mapping[str, Tensor],
    weights: Mapping[str, float],
    parameters: Mapping[str, Sequence[torch.nn.Parameter]],
    *,
    supervised: str = "supervised",
) -> dict[str, float]:
    """Measure what each weighted term of the hybrid loss pulls at; ``.grad`` is not touched and the graph is kept.

    RL is the sum of all weighted terms except ``supervised``. Costs one backward pass for each term of non-zero weight.

    Args:
        terms: name -> scalar with graph.
        weights: name -> weight, as in ``hybrid_loss``.
        parameters: group name -> parameters.
        supervised: name of the supervised term.

    Returns:
        ``grad_norm/<term>`` and ``group_grad_norm/<term>/<group>``; the same with ``rl`` as the term;
        ``grad_cosine/supervised_rl`` and ``group_grad_cosine/supervised_rl/<group>``, absent where one side is exactly 0
        (the angle is undefined);
        ``dead/<term>``: 1.0 where a non-zero weight had exactly zero gradient.
    """
    return report_gradients(
        term_gradients(terms, weights, parameters), parameters, supervised=supervised
    )


def term_gradients(
    terms: Mapping[str, Tensor],
    weights: Mapping[str, float],
    parameters: Mapping[str, Sequence[torch.nn.Parameter]],
) -> dict[str, Gradient]:
    """Return the gradient of each weighted term of non-zero weight: term -> group name -> tensors; the graph is kept."""
    return {
        name: _weighted_gradient(terms[name], weight, parameters)
        for name, weight in weights.items()
        if weight != 0 and name in terms
    }


def add_gradients(parts: Sequence[Mapping[str, Gradient]]) -> dict[str, Gradient]:
    """Add up the gradients of micro-batches, term by term; what ``term_gradients`` returned of each."""
    return {
        term: {name: _sum_lists([part[term][name] for part in parts]) for name in groups}
        for term, groups in parts[0].items()
    }


def report_gradients(
    gradients: Mapping[str, Gradient],
    parameters: Mapping[str, Sequence[torch.nn.Parameter]],
    *,
    supervised: str = "supervised",
) -> dict[str, float]:
    """Return what ``gradient_report`` returns, from gradients that are there already."""
    others = [gradient for name, gradient in gradients.items() if name != supervised]
    # Tensor by tensor; a term without a graph has an empty list and adds nothing.
    rl = {
        group: _sum_lists([gradient[group] for gradient in others if gradient[group]])
        for group in parameters
    }
    products = _dots({**gradients, "rl": rl}, supervised)
    report: dict[str, float] = {}
    for name in gradients:
        report |= _norms(name, products[name, name])
        report[f"dead/{name}"] = float(report[f"grad_norm/{name}"] == 0.0)
    if supervised in gradients:
        # For each group, and their sums for all: <supervised, rl>, |supervised|^2, |rl|^2.
        sides = ((supervised, "rl"), (supervised, supervised), ("rl", "rl"))
        dots = {
            f"group_grad_cosine/supervised_rl/{group}": [products[pair][group] for pair in sides]
            for group in parameters
        }
        dots["grad_cosine/supervised_rl"] = [sum(products[pair].values()) for pair in sides]
        report |= {
            name: ab / (aa**0.5 * bb**0.5)
            for name, (ab, aa, bb) in dots.items()
            if aa > 0 and bb > 0
        }
    return report | _norms("rl", products["rl", "rl"])


def _weighted_gradient(
    term: Tensor, weight: float, parameters: Mapping[str, Sequence[torch.nn.Parameter]]
) -> Gradient:
    flat = [p for group in parameters.values() for p in group if p.requires_grad]
    if not term.requires_grad:
        return {name: [] for name in parameters}
    # One backward pass for all groups; a parameter that the term does not reach has the gradient 0.
    found = dict(
        zip(
            map(id, flat),
            torch.autograd.grad(term, flat, retain_graph=True, allow_unused=True),
            strict=True,
        )
    )
    return {
        name: [
            torch.zeros_like(p) if (g := found[id(p)]) is None else g * weight
            for p in group
            if p.requires_grad
        ]
        for name, group in parameters.items()
    }


def _sum_lists(parts: Sequence[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(same).sum(dim=0) for same in zip(*parts, strict=True)]


def _norms(label: str, squares: Mapping[str, float]) -> dict[str, float]:
    report = {f"group_grad_norm/{label}/{name}": square**0.5 for name, square in squares.items()}
    return report | {f"grad_norm/{label}": sum(squares.values()) ** 0.5}


def _dots(
    gradients: Mapping[str, Gradient], supervised: str
) -> dict[tuple[str, str], dict[str, float]]:
    """Return <a, b> by group, of each term with itself and of the supervised one with ``rl``; one transfer for all."""
    pairs = [(name, name) for name in gradients]
    pairs += [(supervised, "rl")] if supervised in gradients else []
    asked = [(pair, group) for pair in pairs for group in gradients[pair[0]]]
    found = {
        (pair, group): _dot(*(gradients[term][group] for term in pair)) for pair, group in asked
    }
    there = {key: dot for key, dot in found.items() if dot is not None}
    numbers = dict(
        zip(there, torch.stack(list(there.values())).tolist() if there else [], strict=True)
    )
    return {
        pair: {group: numbers.get((pair, group), 0.0) for group in gradients[pair[0]]}
        for pair in pairs
    }


def _dot(a: Iterable[Tensor], b: Iterable[Tensor]) -> Tensor | None:
    # float64: squares of float32 gradients below 1e-19 would be 0 and read as a dead term.
    products = [
        torch.dot(x.flatten().double(), y.flatten().double()) for x, y in zip(a, b, strict=False)
    ]
    return torch.stack(products).sum() if products else None


# Which component each term of a hybrid loss teaches, and whether that is what was meant.
#
# How this differs from ``diagnostics.gradient_report``: that one measures while training runs, this one judges. A leak of 1e-9 is
# a leak, so "none" means exactly 0.

RULES: dict[str, Callable[[float], bool]] = {
    "gradient": lambda norm: 0.0 < norm < math.inf,
    "none": lambda norm: norm == 0.0,
    "any": math.isfinite,
}


def gradient_norms(
    terms: Mapping[str, Tensor],
    weights: Mapping[str, float],
    components: Mapping[str, Sequence[nn.Parameter]],
) -> dict[str, dict[str, float]]:
    """Measure how strongly each weighted term pulls at each component; ``.grad`` is not touched and the graph is kept.

        norm[t, c] = || w_t * dL_t / dtheta_c ||_2

    Args:
        terms: name -> scalar; one without a graph has norm 0 everywhere.
        weights: name -> weight w_t, for every term; a weight of 0 gives norms of 0.
        components: name -> parameters; the frozen ones count nothing.

    Returns:
        term -> component -> norm.

    Raises:
        ValueError: if a term has no weight.
    """
    unweighted = sorted(terms.keys() - weights.keys())
    if unweighted:
        raise ValueError(
            f"weights must name every term, got none for {unweighted}; give each a weight, 0 to turn it off"
        )
    report = gradient_report(terms, weights, components)
    return {
        term: {name: report.get(f"group_grad_norm/{term}/{name}", 0.0) for name in components}
        for term in terms
    }


def reward_norms(parts: Mapping[str, Tensor]) -> dict[str, float]:
    """Return part -> 0.0 where the part carries no gradient, NaN where it is attached to a graph.

    The norm of an attached part is not computed: a reward with a graph is a fault even where its gradient is 0.
    """
    return {name: math.nan if part.requires_grad else 0.0 for name, part in parts.items()}


def agrees(norm: float, expected: str) -> bool:
    """Say whether a norm is as expected; a NaN or infinite one never is.

    ``gradient``: greater than 0; ``none``: exactly 0; ``any``: whatever it is.

    Raises:
        ValueError: if the expectation is unknown.
    """
    return choose(RULES, expected, "expected")(norm)
