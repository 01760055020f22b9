"""Pay for a valid graph, and say what the other terms count as for a graph that is not.

Evidence: docs/decisions/0035-an-invalid-molecule-is-judged-by-validity-alone.md.
"""

from typing import Literal

import torch
from torch import Tensor

from grpo_pipeline.rewards.group_rewards import replace_failed


def validity(is_valid: Tensor) -> Tensor:
    """Score 1 for a valid graph, else 0; bool [P, G] -> float64 [P, G]."""
    return is_valid.double()


def apply_invalid_rule(
    component: Tensor, is_valid: Tensor, invalid: float | Literal["group_mean", "exclude"]
) -> Tensor:
    """Apply the rule for invalid molecules to a component; [P, G] and bool [P, G] -> float64 [P, G].

    ``group_mean`` gives an invalid molecule the mean of its group's scored valid molecules, or 0 in a group without any. A
    component then compares valid molecules only with each other; only the component ``validity`` rewards being valid.
    ``exclude`` is NaN: the sample leaves the statistics of its group, and its advantage is exactly 0.
    """
    if invalid != "group_mean":
        return replace_failed(component, ~is_valid, invalid)
    valid = component.double().masked_fill(~is_valid, torch.nan)
    mean = valid.nanmean(dim=1, keepdim=True).masked_fill(
        ~is_valid.any(dim=1, keepdim=True), 0.0
    )  # [P, 1]
    return torch.where(is_valid, valid, mean)
