"""Learn from the advantages of samples: the policy-gradient term of the loss."""

from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.policy_gradient.ratios import counted_units
from grpo_pipeline.core.policy_gradient.reductions import count_units
from grpo_pipeline.core.types import Advantages, Rollouts, Scores
from grpo_pipeline.pipelines.step.denominators import denominator_of
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.pipelines.step.part import StepPart
from grpo_pipeline.pipelines.step.scoring import score_actions
from grpo_pipeline.tasks.base import Task


def policy_term(
    algorithm: AlgorithmParams, scores: Scores, experience: Experience
) -> dict[str, Tensor]:
    """Return the surrogate of the arm; of a micro-batch, over the denominator of its step."""
    surrogate = algorithm.losses.policy
    assert surrogate is not None
    loss = policy_loss(
        scores.logprobs,
        experience.rollouts.logprobs,
        experience.advantages.values.to(scores.logprobs.dtype),
        experience.rollouts.is_valid,
        surrogate,
        denominator=denominator_of(experience, "policy"),
        selected=experience.selected,
    )
    return {"policy": loss}


def count_units_of(algorithm: AlgorithmParams, task: Task, experience: Experience) -> Tensor:
    """Count what the reduction of the surrogate divides by."""
    surrogate = algorithm.losses.policy
    assert surrogate is not None
    counted = counted_units(experience.rollouts.is_valid, surrogate.ratio_level)
    return count_units(counted, surrogate.reduction, surrogate.max_decisions)


def select_decisions(
    algorithm: AlgorithmParams, rollouts: Rollouts, advantages: Advantages
) -> Tensor | None:
    """Find the decisions of the whole batch that the surrogate treats otherwise, bool [P, G, L]."""
    surrogate = algorithm.losses.policy
    assert surrogate is not None
    return surrogate.select(rollouts.logprobs, advantages.values, rollouts.is_valid)


PART = StepPart(
    is_in=lambda algorithm: algorithm.losses.policy is not None,
    rows={
        "loss": (
            # log-probabilities of the stored actions under the present policy [P, G, L], with its graph
            (
                "loss",
                "scores",
                score_actions,
                "algorithm training task state experience update_epoch",
            ),
            ("loss", "policy_term", policy_term, "algorithm scores experience"),
        ),
    },
    counts={"policy": count_units_of},
)

SELECTION = StepPart(
    is_in=lambda algorithm: algorithm.losses.policy is not None and algorithm.losses.policy.selects,
    rows={
        # decisions that the surrogate treats otherwise: bool [P, G, L]
        "after_advantage": (
            ("advantage", "selected", select_decisions, "algorithm rollouts advantages"),
        ),
    },
)
