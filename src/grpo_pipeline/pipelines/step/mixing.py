"""Weigh the terms of the loss by their schedules at this step."""

from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.hybrid_loss import check_finite, hybrid_loss
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.step.experience import LossTerms
from grpo_pipeline.tasks.base import Task


def mix_losses(
    algorithm: AlgorithmParams, task: Task, state: TrainState, **found: dict[str, Tensor]
) -> LossTerms:
    """Weigh the terms by this step's schedule; a term that is not finite stops the run here.

    A term that is measured without being learned from has the weight 0. Where every weight is 0, as at the end of schedules that
    fall to 0, the total is 0 with a gradient of 0.
    """
    terms = {name: term for part in found.values() for name, term in part.items()}
    check_finite(terms, step=state.step, task=task.name)
    schedules = algorithm.losses.weights
    weights = {
        name: value_at(schedules[name], state.step, state.total_steps) if name in schedules else 0.0
        for name in terms
    }
    # A coefficient that is steered (``entropy_weight``) takes the place of its schedule.
    weights |= {
        name: state.coefficients[f"{name}_weight"]
        for name in terms
        if f"{name}_weight" in state.coefficients
    }
    is_over = not any(weights.values())
    total = (
        hybrid_loss(terms, dict.fromkeys(terms, 1.0)) * 0.0
        if is_over
        else hybrid_loss(terms, weights)
    )
    return LossTerms(terms=terms, weights=weights, total=total)
