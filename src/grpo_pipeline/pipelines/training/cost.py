"""Count what a step has drawn, and whose reward it has measured."""

from collections.abc import Mapping

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.training.step_metrics import Metrics


def count_cost(
    algorithm: AlgorithmParams, rollouts: Rollouts, resampling: Mapping[str, float]
) -> Metrics:
    """Count the samples that a step has drawn, and those and the parts of those whose reward it has measured.

    Groups that were drawn again count each time, and so does each part of a sample that credit per decision asks for. An arm
    that draws nothing costs nothing.

    Args:
        algorithm: of the arm.
        rollouts: of the step, [P, G, L].
        resampling: what drawing tied groups again has cost; empty where that is off.
    """
    prompts, group_size, length = rollouts.actions.shape
    if algorithm.proposal == "none":
        return {"samples": 0.0, "reward_calls": 0.0}
    retries = resampling.get("reward/retries", 0.0)
    drawn = prompts * group_size
    # Each decision is left out, or taken in, once: L parts beside the whole sample. Turns ask for none.
    has_parts = algorithm.credits_decisions and algorithm.advantage.credit != "to_go"
    parts = 1 + (length if has_parts else 0)
    # To find the tied groups, all are measured as they are drawn, and the final ones once more.
    measured = 2 + retries if resampling else 1
    return {
        "samples": float(drawn * (1 + retries)),
        "reward_calls": float(drawn * parts * measured),
    }
