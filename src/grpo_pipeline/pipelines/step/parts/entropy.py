"""Reward the entropy of the policy, and steer the weight of that so that the entropy follows a target (docs/algorithms.md)."""

from dataclasses import replace

from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.entropy import AdaptiveEntropy
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.step.denominators import mean_over_prompts, prompts_of
from grpo_pipeline.pipelines.step.experience import Experience, Report
from grpo_pipeline.pipelines.step.part import StepPart
from grpo_pipeline.pipelines.step.update import ends_batch


def entropy_term(scores: Scores, experience: Experience) -> dict[str, Tensor]:
    """Return -H, since the sum of the terms is minimised; without a bonus it has no weight, and is measured alone."""
    return {"entropy": -mean_over_prompts(scores.entropy, experience, "entropy")}  # [P] -> scalar


def steer_entropy(
    algorithm: AlgorithmParams,
    next_state: TrainState,
    report: Report,
    update_epoch: int,
    stops: bool = False,
) -> TrainState:
    """Move the entropy coefficient towards its target; it follows batches, too."""
    bonus = algorithm.losses.entropy
    assert bonus is not None
    target = bonus.target
    assert target is not None
    if not ends_batch(algorithm, update_epoch, stops):
        return next_state
    steering = AdaptiveEntropy(
        target=target.nats,
        learning_rate=target.learning_rate,
        minimum=target.minimum,
        maximum=target.maximum,
    )
    # The term is -H, the controller wants H.
    moved = steering.step(report.weights["entropy"], -float(report.terms["entropy"]))
    return replace(next_state, coefficients={**next_state.coefficients, "entropy_weight": moved})


# Measured in every arm that learns from samples, also where no bonus is paid.
PART = StepPart(
    is_in=lambda algorithm: algorithm.losses.policy is not None,
    rows={
        "loss": (("loss", "entropy_term", entropy_term, "scores experience"),),
    },
    counts={"entropy": prompts_of},
)

STEERING = StepPart(
    is_in=lambda algorithm: (
        algorithm.losses.entropy is not None and algorithm.losses.entropy.target is not None
    ),
    rows={
        "after_update": (
            ("", "next_state", steer_entropy, "algorithm next_state report update_epoch stops?"),
        ),
    },
)
