"""One update from micro-batches, as pure nodes: every micro-batch adds its gradient, then the weights change once.

    for each micro-batch: encode and decode with a graph -> losses over the denominators of the whole step -> backward
    then: one optimiser step, and the metrics of the whole batch

The gradients add up to that of the whole batch, because no loss is divided by a count of its own (``core.denominators``).
Peak memory follows the micro-batch: its graph is gone before the next one begins.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.denominators import StepDenominators, add, all_reduce_counts, count, count_kl
from grpo_pipeline.core.diagnostics import Gradient, add_gradients, report_gradients, term_gradients
from grpo_pipeline.core.micro_batches import bounds, join_prompts, take_prompts
from grpo_pipeline.core.optim import accumulate, clear_gradients, step
from grpo_pipeline.core.params import AlgorithmParams, PolicyLossParams, TrainingParams
from grpo_pipeline.core.precision import network_precision
from grpo_pipeline.core.types import Scores, TrainState
from grpo_pipeline.pipelines.step import update
from grpo_pipeline.pipelines.step.experience import Experience, LossTerms, StepShare
from grpo_pipeline.tasks.protocol import Task, scores_kl


@dataclass(frozen=True)
class PartReport:
    """Results of one micro-batch: its share of each term, detached; the scores; at report steps the gradients of its terms."""

    terms: Mapping[str, Tensor]
    weights: Mapping[str, float]
    scores: Scores | None
    gradients: Mapping[str, Gradient]


def cut_experience(
    algorithm: AlgorithmParams, training: TrainingParams, task: Task, experience: Experience
) -> tuple[Experience, ...]:
    """Cut the experience of a batch into micro-batches that know the denominators of the whole step.

    Advantages, importance weights and values at rollout time are those of the whole batch.
    """
    size = training.micro_batch_size or len(experience.rollouts.actions)
    places = bounds(len(experience.rollouts.actions), size)
    parts = [take_prompts(replace(experience, outcomes=None, resampling={}), *place) for place in places]
    counts = torch.stack([task.supervised_counts(part.batch) for part in parts])
    shares = counts / counts.sum(0).clamp(min=1)
    if algorithm.policy_loss is None:
        return tuple(replace(part, share=StepShare(i, shares[i], None, None)) for i, part in enumerate(parts))
    found = all_reduce_counts(add(*(_count(algorithm, algorithm.policy_loss, task, p) for p in parts)), gradient_reduction="sum")
    rollout_kl = torch.stack([_count_kl(algorithm.policy_loss, part) for part in parts]).sum().clamp(min=1)
    return tuple(replace(part, share=StepShare(i, shares[i], found, rollout_kl)) for i, part in enumerate(parts))


def attach_part(task: Task, state: TrainState, part: Experience, update_epoch: int) -> Experience:
    """Encode and decode the micro-batch with a graph, in the first update epoch; later ones need no decoding."""
    if update_epoch > 0:
        return part
    with network_precision(state):
        context = task.encode(state.policy, part.batch)
        outcomes = task.decode(state.policy, context, part.rollouts, part.batch)
    return replace(part, context=context, outcomes=outcomes)


def part_terms(
    algorithm: AlgorithmParams, training: TrainingParams, task: Task, state: TrainState, experience: Experience, update_epoch: int
) -> tuple[dict[str, Tensor], tuple[Scores, ...]]:
    """Return the policy, KL, entropy and value terms of a micro-batch, and its scores without graph (none for the control)."""
    if algorithm.policy_loss is None:
        return {}, ()
    scores = update.score_actions(algorithm, training, task, state, experience, update_epoch)
    return update.loss_terms(algorithm, algorithm.policy_loss, scores, experience), (_detached(scores),)


def mix_part(
    algorithm: AlgorithmParams, task: Task, state: TrainState, policy: dict[str, Tensor], supervised: dict[str, Tensor]
) -> LossTerms:
    """Weigh the terms of a micro-batch as ``update.mix_losses`` does."""
    return update.mix_losses(algorithm, task, state, policy, supervised, {})


def accumulate_gradient(
    training: TrainingParams,
    task: Task,
    state: TrainState,
    losses: LossTerms,
    scores: tuple[Scores, ...],
    experience: Experience,
    update_epoch: int,
) -> PartReport:
    """Back-propagate a micro-batch into ``.grad``; the first one of a step begins anew. No weight changes."""
    if experience.share is None or experience.share.number == 0:
        clear_gradients(state)
    gradients: Mapping[str, Gradient] = {}
    if update.is_report_step(state.step, training) and update_epoch == 0:
        gradients = term_gradients(losses.terms, losses.weights, task.parameter_groups(state.policy))
    accumulate(state, losses.total)
    terms = {name: term.detach() for name, term in losses.terms.items()}
    return PartReport(terms, losses.weights, scores[0] if scores else None, gradients)


def apply_accumulated(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    experience: Experience,
    reports: tuple[PartReport, ...],
    update_epoch: int,
) -> tuple[TrainState, dict[str, Tensor | float]]:
    """Take one optimiser step on the gradients of all micro-batches and report what ``update.apply_update`` reports."""
    losses = _whole_losses(algorithm, experience, reports)
    metrics: dict[str, Tensor | float] = dict(losses.diagnostics)
    if update.is_report_step(state.step, training) and update_epoch == 0:
        summed = add_gradients([report.gradients for report in reports])
        metrics |= report_gradients(summed, task.parameter_groups(state.policy)) | update.silent_rewards(experience)
    norms = step(state, **update.step_options(training, state))
    return update.finish_update(algorithm, state, losses, experience, {**metrics, **norms}, update_epoch)


def _count(algorithm: AlgorithmParams, params: PolicyLossParams, task: Task, part: Experience) -> StepDenominators:
    found = count(
        part.rollouts.is_valid,
        ratio_level=params.ratio_level,
        reduction=params.reduction,
        returns=part.rewards.total.nanmean(1),
        max_decisions=params.options.max_decisions,
    )
    of_prompts = algorithm.kl_estimator == "exact" and not scores_kl(task)
    return found if of_prompts else replace(found, kl=_count_kl(params, part))


def _count_kl(params: PolicyLossParams, part: Experience) -> Tensor:
    is_valid, longest = part.rollouts.is_valid, params.max_decisions
    return count_kl(is_valid, ratio_level=params.ratio_level, reduction=params.reduction, max_decisions=longest)


def _whole_losses(algorithm: AlgorithmParams, experience: Experience, reports: tuple[PartReport, ...]) -> LossTerms:
    terms = {name: torch.stack([report.terms[name] for report in reports]).sum() for name in reports[0].terms}
    diagnostics: dict[str, Any] = {}
    scored = [report.scores for report in reports if report.scores is not None]
    if algorithm.policy_loss is not None and scored:
        diagnostics = update.diagnose(algorithm, algorithm.policy_loss, join_prompts(scored), experience)
    return LossTerms(terms=terms, weights=reports[0].weights, total=torch.zeros(()), diagnostics=diagnostics)


def _detached(scores: Scores) -> Scores:
    found: dict[str, Any] = {name: None if x is None else x.detach() for name, x in vars(scores).items()}
    return replace(scores, **found)
