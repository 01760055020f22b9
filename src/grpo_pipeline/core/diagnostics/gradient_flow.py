"""Judge which component each term of a hybrid loss teaches, and whether that is what was meant.

How this differs from ``diagnostics.gradient_report``: that one measures while training runs, this one judges. A leak of 1e-9 is
a leak, so "none" means exactly 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from grpo_pipeline.core.diagnostics.gradient_report import gradient_report
from grpo_pipeline.core.policy_gradient.names import (
    choose,
)

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
