"""Nodes of a step's second half, run once per update epoch: losses, gradients and the update of the weights."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from grpo_pipeline.core.diagnostics.statistics import (
    Gradient,
    ratio_statistics,
    report_gradients,
    term_gradients,
)
from grpo_pipeline.core.params import AlgorithmParams, PolicyLossParams, TrainingParams, is_on
from grpo_pipeline.core.policy_gradient.algorithms import Algorithm
from grpo_pipeline.core.policy_gradient.entropy import AdaptiveEntropy
from grpo_pipeline.core.policy_gradient.kl import (
    LossEstimator,
    categorical_kl,
    count_kl,
    kl_loss,
    rollout_kl_loss,
)
from grpo_pipeline.core.policy_gradient.losses import (
    check_finite,
    explained_variance,
    hybrid_loss,
    importance_ratio,
    mean_over,
    policy_loss,
    reduce_units,
    value_loss,
)
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.core.training.execution import network_precision
from grpo_pipeline.core.training.optim import (
    ReferenceUpdate,
    accumulate,
    clear_gradients,
    update_reference,
)
from grpo_pipeline.core.training.optim import step as step_optimizer
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Credits, Scores
from grpo_pipeline.pipelines.step.collect import Experience, LossTerms, Report, scores_kl
from grpo_pipeline.tasks.base import Task

ENTROPY = "entropy_weight"
# Places of a sample whose mean credit is a metric of its own.
CREDITED_PLACES = 16


def first_update_epoch() -> int:
    """Return 0; later epochs of the fold replace it."""
    return 0


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
    entropy = -_mean_over_prompts(scores.entropy, experience, "entropy")
    terms = {"policy": _surrogate(algorithm, params, scores, experience), "entropy": entropy}
    return (
        terms
        | _kl_terms(algorithm, params, scores, experience)
        | _value_term(algorithm, scores, experience)
    )


def supervised_term(
    task: Task, state: TrainState, experience: Experience, update_epoch: int
) -> dict[str, Tensor]:
    """Return the supervised loss in the first update epoch, nothing later: its gradient counts once per batch."""
    if update_epoch > 0:
        return {}
    known = () if experience.share is None else (experience.share.supervised,)
    loss = task.supervised_loss(
        state.policy, experience.context, experience.batch, experience.outcomes, *known
    )
    return {"supervised": loss}


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


def add_gradient(
    training: TrainingParams,
    task: Task,
    state: TrainState,
    losses: LossTerms,
    experience: Experience,
    update_epoch: int,
    scores: Scores | None = None,
) -> Report:
    """Back-propagate the losses of a piece into ``.grad``; the first piece of an update begins anew. No weight changes."""
    if experience.share is None or experience.share.number == 0:
        clear_gradients(state)
    gradients: Mapping[str, Gradient] = {}
    # The gradients of single terms need the graph, which the backward pass below frees.
    if is_report_step(state.step, training) and update_epoch == 0:
        gradients = term_gradients(
            losses.terms, losses.weights, task.parameter_groups(state.policy)
        )
    accumulate(state, losses.total)
    terms = {name: term.detach() for name, term in losses.terms.items()}
    return Report(terms, losses.weights, scores, gradients)


def apply_update(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    report: Report,
    experience: Experience,
    update_epoch: int,
) -> tuple[TrainState, dict[str, Tensor | float]]:
    """Take one optimiser step on the gradients of all pieces, and report what was measured on the way."""
    metrics: dict[str, Tensor | float] = {}
    if report.scores is not None and algorithm.policy_loss is not None:
        metrics |= diagnose(algorithm, algorithm.policy_loss, report.scores, experience)
    if is_report_step(state.step, training) and update_epoch == 0:
        metrics |= report_gradients(report.gradients, task.parameter_groups(state.policy))
        metrics |= silent_rewards(experience)
    metrics |= step_optimizer(state, **step_options(training, state))
    metrics |= {
        f"{name}/loss": report.terms[name]
        for name in ("policy", "value", "supervised")
        if name in report.terms
    }
    metrics |= _policy_state(report)
    return state, metrics | (_reward_metrics(experience) if update_epoch == 0 else {})


def move_reference(
    algorithm: AlgorithmParams, next_state: TrainState, update_epoch: int
) -> TrainState:
    """Move the reference in its own rhythm: it follows batches, so that only the last update epoch of one moves it."""
    rule = ReferenceUpdate(
        algorithm.reference.update, algorithm.reference.every_steps, algorithm.reference.decay
    )
    if next_state.reference is not None and _is_last(algorithm, update_epoch):
        update_reference(next_state.reference, next_state.policy, rule, next_state.step + 1)
    return next_state


def steer_entropy(
    algorithm: AlgorithmParams, next_state: TrainState, report: Report, update_epoch: int
) -> TrainState:
    """Move the entropy coefficient towards its target; it follows batches, too."""
    target = algorithm.entropy_target
    assert target is not None
    if not _is_last(algorithm, update_epoch):
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


def _is_last(algorithm: AlgorithmParams, update_epoch: int) -> bool:
    return update_epoch == algorithm.update_epochs - 1


def step_options(training: TrainingParams, state: TrainState) -> dict[str, Any]:
    """Return how the optimiser steps at this step: clipping, and the scale of the learning rates."""
    params = training.optimizer
    scale = value_at(params.learning_rate_schedule, state.step, state.total_steps)
    return {
        "max_grad_norm": params.max_grad_norm,
        "clip": params.clip,
        "learning_rate_scale": scale,
    }


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
        denominator=_denominator(experience, "policy"),
        options=params.options,
    )


def _kl_terms(
    algorithm: AlgorithmParams, params: PolicyLossParams, scores: Scores, experience: Experience
) -> dict[str, Tensor]:
    """Return the KL to the reference (``kl``) and to the policy that sampled (``kl_rollout``), where they are paid."""
    rollouts, terms = experience.rollouts, {}
    # Exact for each decision, from the task; else over the whole categorical, or estimated from the samples.
    if scores.kl is not None:
        counted = _kl_denominator(params, experience)
        terms["kl"] = reduce_units(
            scores.kl, rollouts.is_valid, reduction=params.reduction, denominator=counted
        )
    elif algorithm.kl_placement == "loss" and experience.reference.logprobs is not None:
        exact = algorithm.kl_estimator == "exact"
        terms["kl"] = (
            _exact_kl(scores, experience)
            if exact
            else _estimated_kl(algorithm, params, scores, experience)
        )
    if is_on(algorithm.rollout_kl_weight):
        terms["kl_rollout"] = rollout_kl_loss(
            scores.logprobs,
            rollouts.logprobs,
            rollouts.is_valid,
            reduction=params.reduction,
            denominator=_kl_denominator(params, experience, "rollout_kl"),
        )
    return terms


def _exact_kl(scores: Scores, experience: Experience) -> Tensor:
    log_q = experience.reference.log_probs_full
    if log_q is None or scores.log_probs_full is None:
        raise ValueError(
            "kl_estimator must be k2, k3 or ratio_k3 for a task that does not give the whole distribution, got exact; "
            "change it in the arm's algorithm"
        )
    # KL(p || q) of the whole categorical: [P, V] -> [P]; the reference is -inf where a choice is not allowed.
    return _mean_over_prompts(
        categorical_kl(scores.log_probs_full, log_q, log_q > -torch.inf), experience, "kl"
    )


def _estimated_kl(
    algorithm: AlgorithmParams, params: PolicyLossParams, scores: Scores, experience: Experience
) -> Tensor:
    rollouts, ref_logprobs = experience.rollouts, experience.reference.logprobs
    ratio = None
    if algorithm.kl_estimator == "ratio_k3":
        ratio = importance_ratio(
            scores.logprobs, rollouts.logprobs, rollouts.is_valid, level=params.ratio_level
        )  # [P, G, L] or [P, G, 1]
    return kl_loss(
        scores.logprobs,
        cast(Tensor, ref_logprobs),
        rollouts.is_valid,
        estimator=cast(LossEstimator, algorithm.kl_estimator),
        ratio=ratio,
        reduction=params.reduction,
        denominator=_kl_denominator(params, experience),
    )


def _value_term(
    algorithm: AlgorithmParams, scores: Scores, experience: Experience
) -> dict[str, Tensor]:
    if scores.values is None:
        if is_on(algorithm.value_weight):
            raise ValueError(
                "value_weight must be 0 for a policy without a value head, got a positive one; set it to 0"
            )
        return {}
    old = experience.values if algorithm.value_clip is not None else None
    returns, counted = _returns(scores, experience), _denominator(experience, "value")
    return {
        "value": value_loss(scores.values, returns, old, algorithm.value_clip, denominator=counted)
    }


def _mean_over_prompts(values: Tensor, experience: Experience, term: str) -> Tensor:
    counted = _denominator(experience, term)
    return values.mean() if counted is None else mean_over(values, denominator=counted)


def _denominator(experience: Experience, term: str) -> Tensor | None:
    """Return what this term is divided by in a micro-batch; None where the batch is whole."""
    share = experience.share
    return (
        None
        if share is None or share.denominators is None
        else cast(Tensor, getattr(share.denominators, term))
    )


def _kl_denominator(params: PolicyLossParams, experience: Experience, term: str = "kl") -> Tensor:
    """Return what a KL over decisions is divided by: that of the step, or of the whole batch counted here."""
    share = experience.share
    if share is None:
        is_valid, longest = experience.rollouts.is_valid, params.max_decisions
        counted = count_kl(
            is_valid,
            ratio_level=params.ratio_level,
            reduction=params.reduction,
            max_decisions=longest,
        )
        return counted.clamp(min=1)
    return cast(
        Tensor, share.rollout_kl if term == "rollout_kl" else _denominator(experience, term)
    )


def _returns(scores: Scores, experience: Experience) -> Tensor:
    return experience.rewards.total.nanmean(1).to(scores.logprobs.dtype)  # [P]


def diagnose(
    algorithm: AlgorithmParams, params: PolicyLossParams, scores: Scores, experience: Experience
) -> dict[str, Any]:
    """Return how far the policy has moved from the rollouts, and how well the values explain the rewards."""
    rollouts = experience.rollouts
    found: dict[str, Any] = ratio_statistics(
        scores.logprobs.detach(),
        rollouts.logprobs,
        experience.advantages.values,
        rollouts.is_valid,
        ratio_level=params.ratio_level,
        algorithm=cast(Algorithm, algorithm.name),
        options=params.options,
    )
    if scores.values is not None:
        found["value/explained_variance"] = explained_variance(
            scores.values.detach(), _returns(scores, experience)
        )
    return found


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


def is_report_step(step: int, training: TrainingParams) -> bool:
    """Say whether the terms' gradients are measured at this step."""
    return step % training.gradient_report_every_steps == training.gradient_report_every_steps - 1


def _policy_state(report: Report) -> dict[str, Tensor | float]:
    named = {"policy/entropy": ("entropy", -1.0), "kl/reference": ("kl", 1.0)}
    found: dict[str, Tensor | float] = {
        metric: sign * report.terms[name]
        for metric, (name, sign) in named.items()
        if name in report.terms
    }
    return found | {f"weight/{name}": weight for name, weight in report.weights.items()}


def silent_rewards(experience: Experience) -> dict[str, float]:
    """Say which weighted reward components are the same for all samples of every group: they cancel and teach nothing.

    Nothing is said of samples that were not scored, such as those of an arm that draws none.
    """
    parts, weights = experience.rewards.components, experience.rewards.weights
    draws_nothing = experience.rollouts.actions.shape[2] == 0
    if draws_nothing or bool(experience.rewards.total.isnan().all()):
        return {}
    return {
        f"dead/reward_{name}": float(_widest(part) == 0)
        for name, part in parts.items()
        if weights.get(name)
    }


def _reward_metrics(experience: Experience) -> dict[str, Tensor | float]:
    """Return what is known of the rewards; where no sample was scored, that their mean is not a number."""
    rewards = experience.rewards
    if bool(rewards.total.isnan().all()):
        return {"reward/mean": torch.nan, "temperature": experience.temperature}
    metrics: dict[str, Tensor | float] = {
        "reward/mean": rewards.total.nanmean(),
        "reward/std": _spread(rewards.total),
        "reward/ties_fraction": experience.advantages.is_tied.double().mean(),
        "advantage/abs_mean": experience.advantages.values.abs().mean(),
        "temperature": experience.temperature,
    }
    metrics |= dict(experience.resampling) | _component_metrics(rewards.components)
    return metrics | _credit_metrics(rewards.credits)


def _component_metrics(parts: Mapping[str, Tensor]) -> dict[str, Tensor | float]:
    metrics: dict[str, Tensor | float] = {}
    for name, part in parts.items():
        metrics |= {f"reward/{name}/mean": part.nanmean(), f"reward/{name}/std": _spread(part)}
        if bool((unscored := part.isnan()).any()):
            metrics |= {
                f"reward/{name}/unscored_fraction": unscored.double().mean(),
                f"reward/{name}/unscored_count": unscored.double().sum(),
            }
    return metrics


def _credit_metrics(credits: Credits | None) -> dict[str, Tensor | float]:
    """Return the mean credit of the decisions that were taken at each place of a sample, of the first places."""
    if credits is None:
        return {}
    taken = credits.values.masked_fill(~credits.is_valid, torch.nan).nanmean((0, 1))  # [L]
    return {f"credit/decision_{place}": x for place, x in enumerate(taken[:CREDITED_PLACES])}


def _widest(x: Tensor) -> Tensor:
    """Return the largest difference within a group, [P, G] -> scalar, without rounding; NaN was not scored."""
    # Largest and smallest of each group are [P]; a group without a score is -inf - inf, clamped to 0.
    lost = x.isnan()
    return (
        (x.masked_fill(lost, -torch.inf).amax(1) - x.masked_fill(lost, torch.inf).amin(1))
        .clamp(min=0)
        .max()
    )


def _spread(x: Tensor) -> Tensor:
    """Return the mean over prompts of the standard deviation within a group, [P, G] -> scalar; NaN was not scored."""
    squares = (x - x.nanmean(1, keepdim=True)).square().nansum(1)  # [P]
    return (squares / ((~x.isnan()).sum(1) - 1).clamp(min=1)).sqrt().mean()
