"""Measure the gradient of each loss term on each parameter group, for people to read; training does not use it."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

Gradient = Mapping[str, list[Tensor]]


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
