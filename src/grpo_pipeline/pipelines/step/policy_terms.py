"""Score the stored actions, and make the terms of the loss that teach the policy."""

from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from grpo_pipeline.core.params import AlgorithmParams, PolicyLossParams, TrainingParams
from grpo_pipeline.core.policy_gradient.algorithms import Algorithm
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.step.denominators import denominator_of, mean_over_prompts
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.pipelines.step.kl_terms import kl_terms
from grpo_pipeline.pipelines.step.parts.reference import scores_kl
from grpo_pipeline.pipelines.step.parts.values import value_term
from grpo_pipeline.tasks.base import Task


def policy_terms(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    experience: Experience,
    update_epoch: int,
) -> tuple[dict[str, Tensor], Scores]:
    """Score the stored actions; returns the policy, KL, entropy and value terms, and the scores without their graph.

    The first epoch back-propagates into the encoder; later ones reuse its features (``encoder_refresh: once``) or encode
    again (``every_epoch``).
    """
    assert algorithm.policy_loss is not None
    scores = score_actions(algorithm, training, task, state, experience, update_epoch)
    detached: dict[str, Any] = {
        name: None if x is None else x.detach() for name, x in vars(scores).items()
    }
    terms = loss_terms(algorithm, algorithm.policy_loss, scores, experience)
    return terms, replace(scores, **detached)


def score_actions(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    experience: Experience,
    update_epoch: int,
) -> Scores:
    """Return what the present policy says about the stored actions, from the encoding of this update epoch."""
    rollouts, temperature = experience.rollouts, experience.temperature
    with network_precision(state):
        context = _context_of_epoch(task, state, experience, update_epoch, training)
        if algorithm.pays_exact_kl and scores_kl(task):
            return task.score_with_kl(
                state.policy, context, rollouts, reference=state.reference, temperature=temperature
            )
        return task.score(state.policy, context, rollouts, temperature=temperature)


def loss_terms(
    algorithm: AlgorithmParams, params: PolicyLossParams, scores: Scores, experience: Experience
) -> dict[str, Tensor]:
    """Return the policy, entropy, KL and value terms; of a micro-batch, over the denominators of its step."""
    # The sum of the terms is minimised, so that a bonus for entropy H is the term -H; [P] -> scalar.
    entropy = -mean_over_prompts(scores.entropy, experience, "entropy")
    terms = {"policy": _surrogate(algorithm, params, scores, experience), "entropy": entropy}
    return (
        terms
        | kl_terms(algorithm, params, scores, experience)
        | value_term(algorithm, scores, experience)
    )


def _surrogate(
    algorithm: AlgorithmParams, params: PolicyLossParams, scores: Scores, experience: Experience
) -> Tensor:
    return policy_loss(
        scores.logprobs,
        experience.rollouts.logprobs,
        experience.advantages.values.to(scores.logprobs.dtype),
        experience.rollouts.is_valid,
        algorithm=cast(Algorithm, algorithm.name),
        ratio_level=params.ratio_level,
        reduction=params.reduction,
        denominator=denominator_of(experience, "policy"),
        options=params.options,
    )


def _context_of_epoch(
    task: Task,
    state: TrainState,
    experience: Experience,
    update_epoch: int,
    training: TrainingParams,
) -> Any:
    if update_epoch == 0:
        return experience.context
    if training.encoder_refresh == "every_epoch":
        return task.encode(state.policy, experience.prompts)
    return task.detach(experience.context)
