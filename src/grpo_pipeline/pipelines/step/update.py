"""Add up gradients, and change the weights."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from grpo_pipeline.core.diagnostics.gradient_report import (
    Gradient,
    report_gradients,
    term_gradients,
)
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.core.training.optim import (
    accumulate,
    clear_gradients,
)
from grpo_pipeline.core.training.optim import step as step_optimizer
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.step.experience import Experience, LossTerms, Report
from grpo_pipeline.pipelines.step.policy_metrics import diagnose
from grpo_pipeline.pipelines.step.reward_metrics import reward_metrics, silent_rewards
from grpo_pipeline.tasks.base import Task


def first_update_epoch() -> int:
    """Return 0; later epochs of the fold replace it."""
    return 0


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
    return Report(terms, losses.weights, scores and _without_graph(scores), gradients)


def apply_update(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    report: Report,
    experience: Experience,
    update_epoch: int,
    stops: bool = False,
) -> tuple[TrainState, dict[str, Tensor | float]]:
    """Take one optimiser step on the gradients of all pieces, and report what was measured on the way.

    Where the batch stops before this update (``parts.target_kl``) no weight changes.
    """
    metrics: dict[str, Tensor | float] = {}
    if report.scores is not None and algorithm.losses.policy is not None:
        metrics |= diagnose(algorithm.losses.policy, report.scores, experience)
    if stops:
        return state, metrics
    if is_report_step(state.step, training) and update_epoch == 0:
        metrics |= report_gradients(report.gradients, task.parameter_groups(state.policy))
        metrics |= silent_rewards(experience)
    metrics |= step_optimizer(state, **step_options(training, state))
    metrics |= {
        f"{name}/loss": report.terms[name]
        for name in ("policy", "value", "supervised")
        if name in report.terms
    }
    if getattr(task, "supervised_reads_rewards", False):
        metrics["supervised/reads_rewards"] = 1.0
    metrics |= _policy_state(report)
    return state, metrics | (reward_metrics(experience) if update_epoch == 0 else {})


def step_options(training: TrainingParams, state: TrainState) -> dict[str, Any]:
    """Return how the optimiser steps at this step: clipping, and the scale of the learning rates."""
    params = training.optimizer
    scale = value_at(params.learning_rate_schedule, state.step, state.total_steps)
    return {
        "max_grad_norm": params.max_grad_norm,
        "clip": params.clip,
        "learning_rate_scale": scale,
    }


def is_report_step(step: int, training: TrainingParams) -> bool:
    """Say whether the terms' gradients are measured at this step."""
    return step % training.gradient_report_every_steps == training.gradient_report_every_steps - 1


def ends_batch(algorithm: AlgorithmParams, update_epoch: int, stops: bool) -> bool:
    """Say whether no update of its batch follows this one: it is the last of them, or the batch stops here."""
    return stops or update_epoch == algorithm.update_epochs - 1


def _without_graph(scores: Scores) -> Scores:
    kept: dict[str, Any] = {
        name: None if x is None else x.detach() for name, x in vars(scores).items()
    }
    return replace(scores, **kept)


def _policy_state(report: Report) -> dict[str, Tensor | float]:
    named = {"policy/entropy": ("entropy", -1.0), "kl/reference": ("kl", 1.0)}
    found: dict[str, Tensor | float] = {
        metric: sign * report.terms[name]
        for metric, (name, sign) in named.items()
        if name in report.terms
    }
    return found | {f"weight/{name}": weight for name, weight in report.weights.items()}
