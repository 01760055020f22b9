"""Nodes of a step's first half: encode a batch, sample, compute rewards and advantages, and store them as experience.

Only ``sample_rollouts`` and ``dynamic_sampling`` draw random numbers, from generators seeded by (seed, step, attempt).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor

from grpo_pipeline.core.diagnostics.statistics import Gradient
from grpo_pipeline.core.params import AdvantageParams, AlgorithmParams, TrainingParams
from grpo_pipeline.core.policy_gradient import advantages as advantage_functions
from grpo_pipeline.core.policy_gradient.denominators import StepDenominators
from grpo_pipeline.core.policy_gradient.kl import RewardEstimator, kl_in_reward
from grpo_pipeline.core.rewards import Credit, combine_rewards, kept_decisions, subtract_kl
from grpo_pipeline.core.rewards import credit_decisions as credited
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.sampling.dynamic import resample_tied
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.core.training.execution import network_precision
from grpo_pipeline.core.training.replay import StoredGroup, importance_weights, merge_groups
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Advantages, Credits, ReferenceScores, Rewards, Rollouts, Scores
from grpo_pipeline.tasks.base import ScoresKl, Task

# Data that the collect half of a step hands to the update half.


@dataclass(frozen=True)
class Replayed:
    """Stored groups and the places of their prompts in the batch; empty where replay is off."""

    groups: tuple[StoredGroup, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True)
class StepShare:
    """A micro-batch's share of its step: with it the gradients of all micro-batches add up to that of the whole batch.

    Attributes:
        number: position of the micro-batch in the step, from 0.
        supervised: [T], what each part of the supervised loss counts here, as a share of the step (``Task.supervised_counts``).
        denominators: of the policy, KL, entropy and value terms; None for the control, which has none of them.
        rollout_kl: denominator of the KL to the rollout policy, or None.
    """

    number: int
    supervised: Tensor
    denominators: StepDenominators | None
    rollout_kl: Tensor | None


@dataclass(frozen=True)
class Experience:
    """One batch with everything that later update epochs must not compute again.

    Attributes:
        batch: the task's batch, targets replicated to [P, G].
        prompts: the batch as it was made, without the axis G: what is encoded again.
        context: encoding of the batch, still attached to the encoder's graph.
        rollouts: the stored actions with the log-probabilities that the ratio is taken to.
        outcomes: what the samples led to, attached to the decoders' graph.
        rewards: named parts and their weighted total.
        advantages: [P, G], or [P, G, L] of credited decisions, detached, importance weights included.
        temperature: the one that sampled; the update scores at the same.
        reference: what the reference policy says, where a KL is paid.
        values: [P], at the time of the rollout, where they are read.
        importance: [P, G], 1 for fresh groups, of an arm that replays stored ones.
        resampling: what drawing tied groups again has cost, of an arm that does.
        share: of a micro-batch in its step; None for a whole batch.
    """

    batch: Any
    context: Any
    rollouts: Rollouts
    outcomes: Any
    rewards: Rewards
    advantages: Advantages
    temperature: float
    prompts: Any
    reference: ReferenceScores = field(default_factory=ReferenceScores)
    values: Tensor | None = None
    importance: Tensor | None = None
    resampling: Mapping[str, float] = field(default_factory=dict)
    share: StepShare | None = None


@dataclass(frozen=True)
class Report:
    """What a piece of an update has done, without a graph: its share of each term, the scores, gradients of single terms.

    Attributes:
        terms: name -> scalar.
        weights: name -> weight at this step.
        scores: of the piece's samples; None of an arm that learns from none.
        gradients: of the terms, at steps that report them.
    """

    terms: Mapping[str, Tensor]
    weights: Mapping[str, float]
    scores: Scores | None
    gradients: Mapping[str, Gradient]


@dataclass(frozen=True)
class LossTerms:
    """The terms of one update and their weights at this step; a term that is not part of this update is absent."""

    terms: Mapping[str, Tensor]
    weights: Mapping[str, float]
    total: Tensor


def encode_batch(task: Task, state: TrainState, batch: Any) -> Any:
    """Encode the batch once per prompt; the graph stays attached for the supervised loss."""
    with network_precision(state):
        return task.encode(state.policy, batch)


def replicate_batch(training: TrainingParams, task: Task, batch: Any) -> Any:
    """Give every target of the batch a group axis, as views."""
    return task.replicate(batch, training.group_size)


def sample_rollouts(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    context: Any,
) -> tuple[Rollouts, float]:
    """Draw G samples per prompt from the arm's proposal, at the temperature of this step."""
    temperature = value_at(training.temperature, state.step, state.total_steps)
    return _sample(algorithm, training, task, state, context, temperature=temperature), temperature


def dynamic_sampling(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    context: Any,
    replicated: Any,
    rollouts: Rollouts,
    temperature: float,
) -> tuple[Rollouts, Mapping[str, float]]:
    """Draw groups whose samples all earn the same again, a bounded number of times; returns what that has cost, too."""
    assert algorithm.dynamic_sampling is not None
    sampled, detached = rollouts, task.detach(context)

    # The signal of a group lies in what its advantages are computed from: the total, the components or the credits.
    def measure(drawn: Rollouts) -> Tensor:
        with torch.no_grad():
            outcomes = decode_rollouts(task, state, detached, drawn, replicated)
            rewards = compute_rewards(task, replicated, drawn, outcomes)
            if algorithm.credits_decisions:
                rewards = credit_decisions(
                    algorithm, task, state, detached, drawn, replicated, rewards
                )
        # Decisions may differ in what they contributed where the sets tie.
        if rewards.credits is not None:
            # One row for each prompt, [P, G * L], so that a difference in any decision counts.
            return _compare_decisions(algorithm.advantage, rewards.credits).values.flatten(1)
        # Parts may differ where their sum ties, and teach under per_reward: its scores are all 0 exactly where it has no signal.
        is_by_component = algorithm.advantage.method == "per_reward"
        return (
            _compare_components(algorithm.advantage, rewards, whiten=False).values
            if is_by_component
            else rewards.total
        )

    def draw(attempt: int) -> tuple[Rollouts, Tensor]:
        drawn = _sample(
            algorithm, training, task, state, context, temperature=temperature, attempt=attempt
        )
        return drawn, measure(drawn)

    retries, tolerance = algorithm.dynamic_sampling.max_retries, algorithm.advantage.tie_tolerance
    changed, _, report = resample_tied(
        sampled, measure(sampled), draw=draw, max_retries=retries, tie_tolerance=tolerance
    )
    groups = sampled.actions.shape[0]
    return changed, {
        "reward/ties_before_retries": report.tied_before / groups,
        "reward/retries": float(report.attempts),
    }


def nothing_replayed() -> Replayed:
    """Return an empty replay; the fold puts stored groups in its place."""
    return Replayed((), ())


def replay_groups(
    algorithm: AlgorithmParams,
    task: Task,
    state: TrainState,
    context: Any,
    rollouts: Rollouts,
    replayed: Replayed,
    temperature: float,
) -> tuple[Rollouts, Tensor]:
    """Put stored groups at their places and weigh them by how likely the present policy is to draw them.

    The ratio of the update is taken to the policy at the start of this step, so that it is 1 there for stored groups, too; the
    step from the policy that drew them is the importance weight, [P, G], which is exactly 1 for fresh groups.
    """
    assert algorithm.replay is not None
    importance = torch.ones(rollouts.actions.shape[:2], device=rollouts.logprobs.device)  # [P, G]
    if not replayed.positions:
        return rollouts, importance
    merged = merge_groups(rollouts, replayed.groups, replayed.positions)
    with torch.no_grad(), network_precision(state):
        proximal = task.score(
            state.policy, task.detach(context), merged, temperature=temperature
        ).logprobs  # [P, G, L]
    # From the policy that drew a group (behaviour) to that at the start of this step (proximal): the importance weight.
    where = list(replayed.positions)
    importance[where] = importance_weights(
        proximal[where],
        merged.logprobs[where],
        merged.is_valid[where],
        cap=algorithm.replay.importance_cap,
    ).to(importance.dtype)
    # From there on: the ratio of the update, whose old policy is the proximal one.
    logprobs = merged.logprobs.clone()
    logprobs[where] = proximal[where]
    return replace(merged, logprobs=logprobs), importance


def decode_rollouts(
    task: Task, state: TrainState, context: Any, rollouts: Rollouts, replicated: Any
) -> Any:
    """Decode the samples once; rewards read the values, the supervised loss keeps the graph."""
    with network_precision(state):
        return task.decode(state.policy, context, rollouts, replicated)


def compute_rewards(task: Task, replicated: Any, rollouts: Rollouts, outcomes: Any) -> Rewards:
    """Measure the named reward components and add them up with their weights."""
    parts, weights = task.reward(replicated, rollouts, outcomes)
    return combine_rewards(parts, weights)


def credit_decisions(
    algorithm: AlgorithmParams,
    task: Task,
    state: TrainState,
    context: Any,
    rollouts: Rollouts,
    replicated: Any,
    rewards: Rewards,
) -> Rewards:
    """Say what each decision has contributed, in the precision of the step."""
    with network_precision(state):
        return credit_samples(algorithm, task, state.policy, context, rollouts, replicated, rewards)


@torch.no_grad()
def credit_samples(
    algorithm: AlgorithmParams,
    task: Task,
    policy: Any,
    context: Any,
    rollouts: Rollouts,
    replicated: Any,
    measured: Rewards,
) -> Rewards:
    """Return the rewards with what each decision has contributed: all parts of the samples are measured in one call."""
    credit = cast(Credit, algorithm.advantage.credit)
    # kept: [M, L], the decisions that each of the M = L sub-samples keeps; of_subsets: [P, G, M], their rewards.
    kept = kept_decisions(credit, rollouts.actions.shape[2], device=rollouts.actions.device)
    of_subsets = task.subset_rewards(policy, task.detach(context), rollouts, replicated, kept=kept)
    return credited(measured, of_subsets, rollouts.is_valid, credit=credit)


def score_reference(
    algorithm: AlgorithmParams,
    task: Task,
    state: TrainState,
    batch: Any,
    rollouts: Rollouts,
    temperature: float,
) -> ReferenceScores:
    """Return what the reference policy says about the samples; empty where the update computes an exact KL itself."""
    if state.reference is None or (algorithm.pays_exact_kl and scores_kl(task)):
        return ReferenceScores()
    with network_precision(state):
        return task.score_reference(state.reference, batch, rollouts, temperature=temperature)


def penalise_kl(
    algorithm: AlgorithmParams,
    state: TrainState,
    rewards: Rewards,
    rollouts: Rollouts,
    reference: ReferenceScores,
) -> Rewards:
    """Lower each sample's reward by its KL to the reference."""
    if reference.logprobs is None:
        return rewards
    estimator = cast(RewardEstimator, algorithm.kl_estimator)
    estimate = kl_in_reward(
        rollouts.logprobs, reference.logprobs, rollouts.is_valid, estimator=estimator
    )  # [P, G, L]
    weight = value_at(algorithm.kl_weight, state.step, state.total_steps)
    return subtract_kl(rewards, estimate, rollouts.is_valid, weight=weight)


def predict_values(
    task: Task, state: TrainState, context: Any, rollouts: Rollouts, temperature: float
) -> Tensor:
    """Return the values [P] at the time of the rollout, which a baseline or a clipped value loss reads.

    Raises:
        ValueError: for a policy that predicts none.
    """
    with torch.no_grad(), network_precision(state):
        scores = task.score(state.policy, task.detach(context), rollouts, temperature=temperature)
    if scores.values is None:
        raise ValueError(
            "advantage.baseline must be group and value_clip null for a policy without a value head, got one that reads values; "
            "change them, or give the policy a value head"
        )
    return scores.values


def compute_advantages(
    algorithm: AlgorithmParams,
    task: Task,
    replicated: Any,
    rewards: Rewards,
    values: Tensor | None = None,
    importance: Tensor | None = None,
) -> Advantages:
    """Compare each sample, or decision, with its own group, or with the predicted value of its prompt; then weigh the prompts.

    A KL that is paid in the reward is in the total. ``per_reward`` does not read the total: it pays the KL after normalisation.
    """
    params = algorithm.advantage
    if params.method == "per_reward":
        advantages = _compare_components(params, rewards, whiten=True)
        if rewards.kl_penalty is not None:
            # A sample pays its KL if at least one weighted component scored it.
            scored = [
                ~part.isnan() for name, part in rewards.components.items() if rewards.weights[name]
            ]
            is_scored = torch.stack(scored).any(dim=0)  # [P, G]
            advantages = advantage_functions.subtract_penalty(
                advantages, rewards.kl_penalty, is_scored
            )
    elif rewards.credits is not None:
        advantages = _compare_decisions(params, rewards.credits)
    else:
        advantages = advantage_functions.compute_advantages(
            rewards.total,
            method=params.method,
            std=params.std,
            eps=params.eps,
            tie_tolerance=params.tie_tolerance,
            values=values if params.baseline == "value" else None,
        )
    if params.top_k_ratio < 1:
        advantages = advantage_functions.keep_top(
            advantages, rewards.total, ratio=params.top_k_ratio
        )
    # Factors on prompts and on replayed samples come after the normalisation, which would cancel them.
    weights = task.prompt_weights(replicated)
    if weights is not None:
        advantages = advantage_functions.apply_prompt_weights(advantages, weights)
    if importance is None:
        return advantages
    # [P, G], or [P, G, L] of decisions.
    weighed = advantages.values * advantage_functions.along(importance.double(), advantages.values)
    return replace(advantages, values=weighed)


def collect_experience(*, batch: Any, replicated: Any, **values: Any) -> Experience:
    """Bundle what the update epochs replay: the fields of ``Experience``, as far as the arm has them."""
    return Experience(batch=replicated, prompts=batch, **values)


def _compare_components(params: AdvantageParams, rewards: Rewards, *, whiten: bool) -> Advantages:
    return advantage_functions.per_reward_advantages(
        rewards.components,
        rewards.weights,
        std=params.std,
        eps=params.eps,
        tie_tolerance=params.tie_tolerance,
        whiten=whiten,
    )


def _compare_decisions(params: AdvantageParams, credits: Credits) -> Advantages:
    return advantage_functions.decision_advantages(
        credits,
        method=cast(advantage_functions.Method, params.method),
        std=params.std,
        eps=params.eps,
        tie_tolerance=params.tie_tolerance,
    )


def _sample(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Task,
    state: TrainState,
    context: Any,
    *,
    temperature: float,
    attempt: int = 0,
) -> Rollouts:
    places = (state.step, attempt) if attempt else (state.step,)
    stream = Stream.RETRIES if attempt else Stream.ROLLOUTS
    device = next(state.policy.parameters()).device
    with network_precision(state):
        return task.sample(
            state.policy,
            task.detach(context),
            training.group_size,
            temperature=temperature,
            proposal=algorithm.proposal,
            generator=step_generator(state.generator_seed, *places, stream=stream, device=device),
        )


def scores_kl(task: Task) -> TypeGuard[ScoresKl]:
    """Say whether the task has ``score_with_kl``; also of a task that is wrapped in another."""
    return hasattr(task, "score_with_kl")
