"""The loop body as pure nodes: collect once per batch, update K times. Only ``apply_update`` changes weights.

Only ``sample_rollouts`` draws random numbers, from a generator seeded by (seed, step).
"""

from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core import advantages as advantage_functions
from grpo_pipeline.core.diagnostics import gradient_report, ratio_statistics
from grpo_pipeline.core.kl import categorical_kl
from grpo_pipeline.core.losses import check_finite, explained_variance, hybrid_loss, policy_loss, value_loss
from grpo_pipeline.core.optim import apply_update as update_weights
from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import step_generator
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.core.types import Advantages, Rewards, Rollouts, TrainState
from grpo_pipeline.pipelines.step.experience import Experience, LossTerms, ReferenceScores
from grpo_pipeline.tasks.protocol import Task


def encode_batch(task: Task, state: TrainState, batch: Any) -> Any:
    """Encode the batch once per prompt; the graph stays attached for the supervised loss."""
    return task.encode(state.policy, batch)


def replicate_batch(training: TrainingParams, task: Task, batch: Any) -> Any:
    """Give every target of the batch a group axis, as views."""
    return task.replicate(batch, training.group_size)


def sample_rollouts(
    algorithm: AlgorithmParams, training: TrainingParams, task: Task, state: TrainState, context: Any
) -> tuple[Rollouts, float]:
    """Draw G samples per prompt from the arm's proposal, at the temperature of this step."""
    temperature = value_at(training.temperature, state.step, state.total_steps)
    device = next(state.policy.parameters()).device
    generator = step_generator(state.generator_seed, state.step, device=device)
    rollouts = task.sample(
        state.policy,
        task.detach(context),
        training.group_size,
        temperature=temperature,
        proposal=algorithm.proposal,
        generator=generator,
    )
    return rollouts, temperature


def decode_rollouts(task: Task, state: TrainState, context: Any, rollouts: Rollouts, replicated: Any) -> Any:
    """Decode the samples once; rewards read the values, the supervised loss keeps the graph."""
    return task.decode(state.policy, context, rollouts, replicated)


def compute_rewards(task: Task, replicated: Any, rollouts: Rollouts, outcomes: Any) -> Rewards:
    """Measure the named reward parts and add them up with their weights."""
    parts, weights = task.reward(replicated, rollouts, outcomes)
    return combine_rewards(parts, weights)


def compute_advantages(training: TrainingParams, rewards: Rewards) -> Advantages:
    """Compare each sample with its own group."""
    params = training.advantage
    return advantage_functions.compute_advantages(rewards.total, method=params.method, std=params.std)


def score_reference(
    algorithm: AlgorithmParams, task: Task, state: TrainState, replicated: Any, rollouts: Rollouts, temperature: float
) -> ReferenceScores:
    """Return the reference policy's distribution over choices; empty when the arm pays no KL."""
    if algorithm.kl_weight == 0 or state.reference is None:
        return ReferenceScores(None)
    return ReferenceScores(task.score_reference(state.reference, replicated, rollouts, temperature=temperature))


def collect_experience(
    replicated: Any,
    context: Any,
    rollouts: Rollouts,
    temperature: float,
    outcomes: Any,
    rewards: Rewards,
    advantages: Advantages,
    reference: ReferenceScores,
) -> Experience:
    """Bundle what the update epochs replay."""
    return Experience(replicated, context, rollouts, outcomes, rewards, advantages, reference, temperature)


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
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Score the stored actions and return the policy, KL, entropy and value terms with their diagnostics.

    The first epoch back-propagates into the encoder; later ones reuse its features (``encoder_refresh: once``) or encode
    again (``every_epoch``).
    """
    if algorithm.name == "supervised":
        return {}, {}
    context = _context_of_epoch(task, state, experience, update_epoch, training)
    rollouts = experience.rollouts
    scores = task.score(state.policy, context, rollouts, temperature=experience.temperature)
    params = training.policy_loss
    advantages = experience.advantages.values.to(scores.logprobs.dtype)
    returns = experience.rewards.total.nanmean(1).to(scores.logprobs.dtype)
    terms = {
        "policy": policy_loss(
            scores.logprobs,
            rollouts.logprobs,
            advantages,
            rollouts.is_valid,
            algorithm="reinforce" if algorithm.name == "reinforce" else "grpo",
            clip_low=params.clip_low,
            clip_high=params.clip_high,
            ratio_level=params.ratio_level,
            reduction=params.reduction,
        ),
        "entropy": -scores.entropy.mean(),
    }
    if scores.values is not None:
        terms["value"] = value_loss(scores.values, returns)
    reference = experience.reference.log_probs
    if reference is not None and scores.log_probs_full is not None:
        terms["kl"] = categorical_kl(scores.log_probs_full, reference, reference > -torch.inf).mean()
    diagnostics = ratio_statistics(
        scores.logprobs.detach(),
        rollouts.logprobs,
        advantages,
        rollouts.is_valid,
        clip_low=params.clip_low,
        clip_high=params.clip_high,
        ratio_level=params.ratio_level,
    )
    if scores.values is not None:
        diagnostics["value/explained_variance"] = explained_variance(scores.values.detach(), returns)
    return terms, diagnostics


def supervised_term(task: Task, state: TrainState, experience: Experience, update_epoch: int) -> dict[str, Tensor]:
    """Return the supervised loss in the first update epoch, nothing later: its gradient counts once per batch."""
    if update_epoch > 0:
        return {}
    return {"supervised": task.supervised_loss(state.policy, experience.context, experience.batch, experience.outcomes)}


def mix_losses(
    algorithm: AlgorithmParams,
    task: Task,
    state: TrainState,
    policy: dict[str, Tensor],
    supervised: dict[str, Tensor],
    diagnostics: dict[str, Any],
) -> LossTerms:
    """Weigh the terms by this step's schedule; a term that is not finite stops the run here."""
    terms = supervised | policy
    check_finite(terms, step=state.step, task=task.name)
    weights = {
        "supervised": algorithm.supervised_weight,
        "policy": value_at(algorithm.policy_weight, state.step, state.total_steps),
        "kl": algorithm.kl_weight,
        "entropy": value_at(algorithm.entropy_weight, state.step, state.total_steps),
        "value": algorithm.value_weight,
    }
    used = {name: weights[name] for name in terms}
    return LossTerms(terms=terms, weights=used, total=hybrid_loss(terms, used), diagnostics=diagnostics)


def apply_update(
    training: TrainingParams, task: Task, state: TrainState, losses: LossTerms, experience: Experience, update_epoch: int
) -> tuple[TrainState, dict[str, Tensor | float]]:
    """Take one optimiser step and report what was measured on the way."""
    metrics: dict[str, Tensor | float] = dict(losses.diagnostics)
    if _is_report_step(state.step, training) and update_epoch == 0:
        metrics |= gradient_report(losses.terms, losses.weights, task.parameter_groups(state.policy))
    params = training.optimizer
    scale = value_at(params.learning_rate_schedule, state.step, state.total_steps)
    state, norms = update_weights(
        state, losses.total, max_grad_norm=params.max_grad_norm, clip=params.clip, learning_rate_scale=scale
    )
    metrics |= {f"{name}/loss": term.detach() for name, term in losses.terms.items() if name not in ("entropy", "kl")}
    metrics |= _policy_state(losses.terms)
    metrics |= norms
    if update_epoch == 0:
        metrics |= _reward_metrics(experience)
    return state, metrics


def _context_of_epoch(task: Task, state: TrainState, experience: Experience, update_epoch: int, training: TrainingParams) -> Any:
    if update_epoch == 0:
        return experience.context
    if training.encoder_refresh == "every_epoch":
        return task.encode(state.policy, experience.batch)
    return task.detach(experience.context)


def _is_report_step(step: int, training: TrainingParams) -> bool:
    return step % training.gradient_report_every_steps == training.gradient_report_every_steps - 1


def _policy_state(terms: Any) -> dict[str, Tensor]:
    named = {"policy/entropy": ("entropy", -1.0), "kl/reference": ("kl", 1.0)}
    return {metric: sign * terms[name].detach() for metric, (name, sign) in named.items() if name in terms}


def _reward_metrics(experience: Experience) -> dict[str, Tensor | float]:
    rewards = experience.rewards
    metrics: dict[str, Tensor | float] = {
        "reward/mean": rewards.total.mean(),
        "reward/std": rewards.total.std(1).mean(),
        "reward/ties_fraction": experience.advantages.is_tied.double().mean(),
        "advantage/abs_mean": experience.advantages.values.abs().mean(),
        "temperature": experience.temperature,
    }
    for name, part in rewards.parts.items():
        metrics |= {f"reward/{name}/mean": part.mean(), f"reward/{name}/std": part.std(1).mean()}
    return metrics
