"""Weigh what another engine drew by how likely the policy is to draw it (docs/algorithms.md)."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.advantage_changes import along
from grpo_pipeline.core.policy_gradient.ratios import LOG_RATIO_BOUND, per_unit
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Advantages, Rollouts
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.pipelines.step.part import StepPart
from grpo_pipeline.tasks.base import Task


@torch.no_grad()
def score_again(
    task: Task, state: TrainState, context: Any, rollouts: Rollouts, temperature: float
) -> tuple[Rollouts, Tensor]:
    """Score the samples under the policy of this step, whose log-probabilities become the old ones of the ratio.

    Returns:
        The rollouts, and by how much the log-probability of each decision is above the engine's: float64 [P, G, L], in nats, 0
        where no decision was taken.

    Raises:
        ValueError: if the policy cannot judge a decision, or the engine says that it could not have drawn it.
    """
    with network_precision(state):
        scored = task.score(
            state.policy, task.detach(context), rollouts, temperature=temperature
        ).logprobs  # [P, G, L]
    mismatch = (scored.double() - rollouts.logprobs.double()).masked_fill(~rollouts.is_valid, 0.0)
    # -inf (the policy would never draw it) is the weight 0; NaN and +inf compare as False.
    is_bad = ~(mismatch < inf)  # [P, G, L]
    if bool(is_bad.any()):
        prompt, sample, place = is_bad.nonzero()[0].tolist()
        raise ValueError(
            f"log-probabilities of an engine must be finite, got a difference of {float(mismatch[prompt, sample, place])} at "
            f"decision {place} of sample {sample} of prompt {prompt}, step {state.step} of {task.name}; look at what it returns"
        )
    return replace(rollouts, logprobs=scored), mismatch


def weigh_advantages(
    algorithm: AlgorithmParams, advantages: Advantages, mismatch: Tensor
) -> Advantages:
    """Multiply the advantages by the weights: [P, G], or [P, G, L] with a weight for each decision.

    A surrogate is proportional to the size of its advantage, so that this weighs the terms of the loss.
    """
    assert algorithm.correction is not None
    weights = algorithm.correction.weights(ratios(algorithm, mismatch))
    values = advantages.values if weights.ndim == 2 else per_unit(advantages.values)
    return replace(advantages, values=values * along(weights, values))


def report_mismatch(
    algorithm: AlgorithmParams,
    step_metrics: Mapping[str, Tensor | float],
    experience: Experience,
    update_epoch: int,
) -> Mapping[str, Tensor | float]:
    """Add how far engine and policy are apart to the metrics of a batch.

    ``engine/mismatch_kl`` is the mean over decisions of r - 1 - log r, which estimates KL(engine || policy) and is at least 0.
    """
    if update_epoch > 0 or experience.mismatch is None:
        return step_metrics
    assert algorithm.correction is not None
    is_valid = experience.rollouts.is_valid
    apart = experience.mismatch[is_valid].clamp(max=LOG_RATIO_BOUND)  # [n]
    ratio = ratios(algorithm, experience.mismatch)
    beyond = algorithm.correction.beyond(ratio)[is_valid if ratio.ndim == 3 else ...]
    return {
        **step_metrics,
        "engine/mismatch_kl": (apart.exp() - 1 - apart).mean(),
        "engine/mismatch_max": apart.abs().max(),
        "engine/weights_capped": beyond.double().mean(),
    }


def ratios(algorithm: AlgorithmParams, mismatch: Tensor) -> Tensor:
    """Return the probability under the policy over that under the engine: [P, G, L], or of samples [P, G]."""
    assert algorithm.correction is not None
    of_samples = algorithm.correction.level == "sequence"
    log_ratio = mismatch.sum(-1) if of_samples else mismatch
    return log_ratio.clamp(max=LOG_RATIO_BOUND).exp()


PART = StepPart(
    is_in=lambda algorithm: algorithm.correction is not None,
    rows={
        # log-probabilities under the policy, and how far it is above the engine that drew: [P, G, L]
        "after_sampling": (
            ("sample", "rollouts mismatch", score_again, "task state context rollouts temperature"),
        ),
        "after_advantage": (
            ("advantage", "advantages", weigh_advantages, "algorithm advantages mismatch"),
        ),
        "after_update": (
            ("", "step_metrics", report_mismatch, "algorithm step_metrics experience update_epoch"),
        ),
    },
)
