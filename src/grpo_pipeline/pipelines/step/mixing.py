"""Weigh the terms of the loss by their schedules at this step."""

from torch import Tensor

from grpo_pipeline.core.params import AlgorithmParams
from grpo_pipeline.core.policy_gradient.hybrid_loss import check_finite, hybrid_loss
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.step.experience import LossTerms
from grpo_pipeline.pipelines.step.parts.entropy_target import ENTROPY
from grpo_pipeline.tasks.base import Task


def mix_losses(
    algorithm: AlgorithmParams,
    task: Task,
    state: TrainState,
    supervised_losses: dict[str, Tensor],
    policy_losses: dict[str, Tensor] | None = None,
) -> LossTerms:
    """Weigh the terms by this step's schedule; a term that is not finite stops the run here.

    Where every weight is 0, as at the end of schedules that fall to 0, the total is 0 with a gradient of 0.
    """
    terms = supervised_losses | (policy_losses or {})
    check_finite(terms, step=state.step, task=task.name)
    schedules = {
        "supervised": algorithm.supervised_weight,
        "policy": algorithm.policy_weight,
        "kl": algorithm.kl_weight,
        "kl_rollout": algorithm.rollout_kl_weight,
        "entropy": algorithm.entropy_weight,
        "value": algorithm.value_weight,
    }
    weights = {name: value_at(schedules[name], state.step, state.total_steps) for name in terms}
    # A coefficient that follows an entropy target (``AdaptiveEntropy``) takes the place of the schedule.
    if "entropy" in weights and ENTROPY in state.coefficients:
        weights["entropy"] = state.coefficients[ENTROPY]
    is_over = not any(weights.values())
    total = (
        hybrid_loss(terms, dict.fromkeys(terms, 1.0)) * 0.0
        if is_over
        else hybrid_loss(terms, weights)
    )
    return LossTerms(terms=terms, weights=weights, total=total)
