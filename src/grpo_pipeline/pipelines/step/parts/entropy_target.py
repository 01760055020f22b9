"""Steer the weight of the entropy so that the entropy follows a target (docs/algorithms.md)."""

from dataclasses import replace

from grpo_pipeline.core.params import AlgorithmParams
from grpo_pipeline.core.policy_gradient.entropy import AdaptiveEntropy
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.step.experience import Report
from grpo_pipeline.pipelines.step.update import ends_batch

ENTROPY = "entropy_weight"


def steer_entropy(
    algorithm: AlgorithmParams, next_state: TrainState, report: Report, update_epoch: int
) -> TrainState:
    """Move the entropy coefficient towards its target; it follows batches, too."""
    target = algorithm.entropy_target
    assert target is not None
    if not ends_batch(algorithm, update_epoch):
        return next_state
    steering = AdaptiveEntropy(
        target=target.target,
        learning_rate=target.learning_rate,
        minimum=target.minimum,
        maximum=target.maximum,
    )
    # The term is -H, the controller wants H.
    moved = steering.step(report.weights["entropy"], -float(report.terms["entropy"]))
    return replace(next_state, coefficients={**next_state.coefficients, ENTROPY: moved})
