"""Terms of a step and options of an arm: other algorithms, value baselines, KL in the reward, retries."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from loss_terms import mixed_losses
from tiny_attention import (
    algorithm_params,
    constant,
    differing,
    gather,
    make_batch,
    make_data,
    make_state,
    make_task,
    shake,
    training_params,
    weights,
)  # fmt: skip
from tiny_choices import TinyChoices, own_rates
from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.hybrid_loss import NonFiniteLossError
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.step import advantages, sampling
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.step.parts import dynamic_sampling, supervised
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.tasks.attention.task import AttentionTask

TASK, DATA = make_task(), make_data()
PURE: dict[str, Any] = dict.fromkeys(("supervised", "value", "entropy", "kl"))
FALLING = {"kind": "linear", "start": 1.0, "end": 0.0}
FADED = PURE | {name: {"weight": FALLING} for name in ("supervised", "value", "entropy")}


def moved(algorithm: AlgorithmParams) -> TrainState:
    state = make_state(TASK, DATA, algorithm)
    shake(state.policy, seed=1, scale=0.3)
    return replace(state, total_steps=10)


def experience_of(algorithm: AlgorithmParams, state: TrainState) -> Any:
    return gather(algorithm, training_params(), TASK, state, make_batch(TASK))


@dataclass(frozen=True)
class Paid(AttentionTask):
    """Pays what it is told to: rollouts -> parts of the reward [P, G]."""

    parts: Callable[[Rollouts], dict[str, Tensor]] | None = None
    part_weights: Any = None

    def reward(self, batch: Any, rollouts: Rollouts, outcomes: Any) -> Any:
        parts = self.parts(rollouts)
        return parts, self.part_weights or dict.fromkeys(parts, 1.0)


def paid(parts: Callable[[Rollouts], dict[str, Tensor]], **weights: float) -> AttentionTask:
    return Paid(TASK.model, TASK.rewards, TASK.supervised, TASK.image_size, TASK.device, parts=parts, part_weights=weights)


@pytest.mark.parametrize(
    ("others", "weights"),
    [
        (PURE, {"policy": 0.5, "entropy": 0.0}),  # measured without a bonus, too
        (FADED, {"supervised": 0.0, "policy": 0.5, "entropy": 0.0, "value": 0.0}),  # their last step has come
    ],
)
def test_weight_zero_leaves_the_graph_and_the_control_has_no_policy_term(others: Any, weights: dict[str, float]) -> None:
    algorithm = algorithm_params(losses=others | {"policy": {"weight": constant(0.5)}})
    state = replace(moved(algorithm), step=9)
    experience = experience_of(algorithm, state)
    losses, _ = mixed_losses(algorithm, training_params(), TASK, state, experience, 0)
    torch.testing.assert_close(losses.total, 0.5 * losses.terms["policy"])
    assert losses.weights == weights
    assert losses.terms.keys() == weights.keys()
    assert losses.terms["policy"].requires_grad
    groups = TASK.parameter_groups(state.policy)
    silent = [*groups["value_head"], *groups["class_decoder"], *groups["mask_decoder"]]
    assert torch.autograd.grad(losses.total, silent, allow_unused=True) == (None,) * len(silent)
    control = algorithm_params("supervised")
    experience = experience_of(control, state)
    assert Parts.of(control).chosen == (supervised.PART,)
    found, scores = mixed_losses(control, training_params(), TASK, state, experience, 0)
    assert found.terms == supervised.supervised_term(TASK, state, experience, 0)
    assert scores is None
    assert experience.reference.log_probs_full is None


@pytest.mark.parametrize(("term", "method"), [("supervised", "supervised_loss"), ("value", "score")])
def test_a_term_that_is_not_finite_stops_the_run(monkeypatch: pytest.MonkeyPatch, term: str, method: str) -> None:
    state, sound = replace(moved(algorithm_params()), step=7), getattr(AttentionTask, method)

    def spoilt(*args: Any, **kwargs: Any) -> Any:
        found = sound(*args, **kwargs)
        return found * math.nan if term == "supervised" else replace(found, values=found.values * math.inf)

    before = weights(state.policy)
    monkeypatch.setattr(AttentionTask, method, spoilt)
    message = f"loss term '{term}' of task 'attention' must be finite, got (nan|inf) at step 7; the weights are unchanged"
    with pytest.raises(NonFiniteLossError, match=message):
        StepRunner(TASK, algorithm_params(), training_params())(state, make_batch(TASK))
    assert differing(before, weights(state.policy)) == []
    assert len(state.optimizer.state) == 0


def test_under_per_reward_the_kl_is_subtracted_from_the_advantage_undivided() -> None:
    """A sample of which one part was scored pays, too."""
    changes: dict[str, Any] = {"advantage": {"method": "per_reward"}, "losses": {"kl": None}}
    free, paid = (algorithm_params(**changes, kl_in_reward=kl) for kl in (None, {"weight": 0.5, "estimator": "k1"}))
    state = moved(paid)
    without, experience = experience_of(free, state), experience_of(paid, state)
    k1 = (experience.rollouts.logprobs - experience.reference.logprobs).sum(-1).double()
    expected = without.advantages.values - 0.5 * (k1 - k1.mean(1, keepdim=True))
    torch.testing.assert_close(experience.advantages.values, expected, atol=1e-6, rtol=0)
    assert float((experience.advantages.values - without.advantages.values).abs().max()) > 0.05
    parts = {"first": torch.tensor([[0.0, 1.0, 2.0, 4.0]]), "second": torch.tensor([[math.nan, 2.0, 1.0, 0.0]])}
    rewards = combine_rewards(parts, dict.fromkeys(parts, 1.0))
    given = [replace(rewards, kl_penalty=torch.tensor([[kl, 0.0, 0.0, 0.0]])) for kl in (0.0, 1.0)]
    one, other = (advantages.compute_advantages(paid, TASK, None, each, None).values for each in given)
    torch.testing.assert_close(other - one, torch.tensor([[-0.75, 0.25, 0.25, 0.25]], dtype=torch.float64))


def test_under_constant_a_kl_of_joint_samples_is_divided_by_their_number() -> None:
    loss = {"reduction": "constant", "ratio_level": "joint", "max_decisions": None}
    algorithm = algorithm_params(losses={"policy": loss, "kl": {"estimator": "k3"}})
    state = moved(algorithm)
    experience = experience_of(algorithm, state)
    shake(state.policy.policy, seed=4, scale=0.05)
    losses, _ = mixed_losses(algorithm, training_params(), TASK, state, experience, 1)
    rollouts = experience.rollouts
    now = TASK.score(state.policy, TASK.detach(experience.context), rollouts, temperature=1.0).logprobs.detach()
    x = experience.reference.logprobs - now
    each = (x.exp() - x - 1).clamp(max=10.0).masked_fill(~rollouts.is_valid, 0.0)
    expected = each.sum() / (each.shape[0] * each.shape[1])
    assert float(expected) > 1e-3
    torch.testing.assert_close(losses.terms["kl"].detach(), expected, atol=1e-6, rtol=1e-4)


def test_a_term_that_the_task_cannot_give_is_refused_and_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = algorithm_params()
    state = moved(algorithm)
    experience, score = experience_of(algorithm, state), AttentionTask.score
    blind = replace(experience, reference=replace(experience.reference, log_probs_full=None))
    with pytest.raises(ValueError, match="losses.kl.estimator must be k2, k3 or ratio_k3 for a task that does not give the"):
        mixed_losses(algorithm, training_params(), TASK, state, blind, 0)
    monkeypatch.setattr(AttentionTask, "score", lambda *args, **kwargs: replace(score(*args, **kwargs), values=None))
    with pytest.raises(ValueError, match="losses.value must be null for a policy without a value head"):
        mixed_losses(algorithm, training_params(), TASK, state, experience, 0)


def test_tied_groups_are_drawn_again_with_noise_of_their_own_and_the_others_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pays 1 for a set whose first point is cell 5, else 0: most groups tie."""
    seeds, sample = [], AttentionTask.sample

    def noted(*args: Any, generator: Any, **kwargs: Any) -> Any:
        seeds.append(generator.initial_seed())
        return sample(*args, generator=generator, **kwargs)

    monkeypatch.setattr(AttentionTask, "sample", noted)
    task = paid(lambda rollouts: {"hit": (rollouts.actions[..., 0] == 5).float()})
    algorithm, training = algorithm_params(dynamic_sampling={"max_retries": 20}), training_params()
    state, batch = replace(make_state(task, DATA, algorithm, seed=4), step=3), make_batch(task)
    context, replicated = task.encode(state.policy, batch), task.replicate(batch, 4)
    sampled, temperature = sampling.sample_rollouts(algorithm, training, task, state, context)
    given = algorithm, training, task, state, context, replicated, sampled, temperature
    (drawn, report), retries = dynamic_sampling.dynamic_sampling(*given), len(seeds)
    again, _ = dynamic_sampling.dynamic_sampling(*given)
    attempts = [step_generator(4, 3, attempt, stream=Stream.RETRIES).initial_seed() for attempt in range(1, retries)]
    assert seeds == [step_generator(4, 3, stream=Stream.ROLLOUTS).initial_seed(), *attempts, *attempts]
    before, after = ((r.actions[..., 0] == 5).sum(1) for r in (sampled, drawn))
    was_tied = (before == 0) | (before == 4)
    assert int(was_tied.sum()) >= 2
    assert not bool(((after == 0) | (after == 4)).any())
    assert torch.equal(drawn.actions[~was_tied], sampled.actions[~was_tied])
    assert report["reward/ties_before_retries"] == pytest.approx(float(was_tied.double().mean()))
    assert torch.equal(again.actions, drawn.actions)  # a function of (seed, step, attempt)
    logprobs = task.score(state.policy, context, drawn, temperature=temperature).logprobs.detach()
    torch.testing.assert_close(logprobs, drawn.logprobs, atol=1e-6, rtol=0)


def rising(scale: float, *, lost: bool = False) -> Callable[[Rollouts], Tensor]:
    """Return a part that pays ``scale`` more for each sample than for the one before; the first one may go unscored."""

    def part(rollouts: Rollouts) -> Tensor:
        found = scale * torch.arange(rollouts.actions.shape[1], dtype=torch.float64).repeat(len(rollouts.actions), 1)
        return found.index_fill(1, torch.tensor([0]), math.nan) if lost else found

    return part


def parts(**functions: Callable[[Rollouts], Tensor]) -> Callable[[Rollouts], dict[str, Tensor]]:
    return lambda rollouts: {name: function(rollouts) for name, function in functions.items()}


OPPOSED = paid(parts(up=rising(2.0), down=rising(-1.0)), up=1.0, down=2.0)  # all totals are 0, the scores of the parts not
GAPS = paid(parts(differs=rising(1.0, lost=True), same=lambda r: torch.full(r.actions.shape[:2], 0.1, dtype=torch.float64)))
FLAT, LEVEL, STEEP = (paid(parts(flat=rising(scale))) for scale in (0.0, 1e-10, 0.01))


@pytest.mark.parametrize(
    ("task", "advantage", "expected"),
    [
        (OPPOSED, {"method": "group"}, {"reward/retries": 3.0, "reward/ties_fraction": 1.0}),
        (OPPOSED, {"method": "per_reward"}, {"reward/retries": 0.0, "reward/ties_fraction": 0.0}),
        (FLAT, {}, {"reward/retries": 3.0, "reward/ties_fraction": 1.0, "dead/reward_flat": 1.0, "dead/policy": 1.0}),
        (STEEP, {}, {"reward/retries": 0.0, "reward/ties_fraction": 0.0, "dead/reward_flat": 0.0, "dead/policy": 0.0}),
        (LEVEL, {}, {"reward/retries": 3.0, "reward/ties_fraction": 1.0, "dead/policy": 1.0}),
        (GAPS, {}, {"dead/reward_differs": 0.0, "dead/reward_same": 1.0, "reward/differs/unscored_fraction": 0.25}),
    ],
)
def test_ties_retries_dead_parts_and_unscored_samples_are_counted(task: Any, advantage: Any, expected: dict[str, float]) -> None:
    algorithm = algorithm_params(dynamic_sampling={"max_retries": 3}, advantage=advantage)
    training = training_params(gradient_report_every_steps=1)
    _, metrics = StepRunner(task, algorithm, training)(make_state(task, DATA, algorithm), make_batch(task))
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert "reward/same/unscored_fraction" not in metrics


class Levelled(TinyChoices):
    """Every sample earns 1, whatever it is made of; its parts do not."""

    def reward(self, *given: Any) -> Any:
        parts, weights = super().reward(*given)
        return {name: torch.ones_like(part) for name, part in parts.items()}, weights


@pytest.mark.parametrize("credit", ["set", "marginal_to_go", "to_go"])
def test_credit_is_reported_by_place_and_teaches_where_the_samples_tie(credit: str) -> None:
    """Of three places the later ones are not reached by all."""
    algorithm = algorithm_params(dynamic_sampling={"max_retries": 2}, advantage={"credit": credit})
    training = own_rates(training_params(batch_size=8, group_size=4), 0.1)
    task = Levelled()
    done = StepRunner(task, algorithm, training).run(
        make_state(task, None, algorithm, training), task.make_batch(None, np.arange(8))
    )
    metrics, experience = done.metrics, done.experience
    assert (metrics["reward/ties_before_retries"] == 1.0) == (credit == "set")
    # Some prompts pay nothing for a first choice: there no turn differs, however often they are drawn.
    assert (metrics["reward/retries"] == 2.0) == (credit != "marginal_to_go")
    assert bool(experience.advantages.values.any()) == (credit != "set")
    found = {name: value for name, value in metrics.items() if name.startswith("credit/")}
    is_valid, credits = experience.rollouts.is_valid, experience.rewards.credits
    assert not is_valid.all()
    want: dict[str, float] = {}
    if credits is not None:
        unit, places = ("turn", [0, 1]) if credit == "to_go" else ("decision", [0, 1, 2])
        # The second turn begins with the second decision.
        want = {f"credit/{unit}_{d}": float(credits.values[..., d][is_valid[..., d]].mean()) for d in places}
    assert found == pytest.approx(want)
    assert bool(want) == (credit != "set")


@pytest.mark.parametrize(
    ("arm", "losses", "micro_batch_size"),
    [
        # The second epoch has no supervised loss.
        ("grpo", PURE | {"supervised": {"weight": 1.0}, "policy": {"weight": FALLING}}, None),
        ("grpo", PURE | {"policy": {"weight": FALLING}}, 4),
        ("supervised", {"supervised": {"weight": FALLING}}, 4),
    ],
)
def test_a_schedule_may_end_at_zero(arm: str, losses: dict[str, Any], micro_batch_size: int | None) -> None:
    """At the last step nothing is weighed: the run ends there, with a gradient of 0, and does not stop with an error."""
    task, algorithm = TinyChoices(), algorithm_params(arm, losses=losses)
    training = own_rates(training_params(epochs=3, batch_size=8, group_size=4, micro_batch_size=micro_batch_size), 0.1)
    state, runner, norms = make_state(task, None, algorithm, training), StepRunner(task, algorithm, training), []
    for _ in range(3):
        state, metrics = runner(state, task.make_batch(None, np.arange(8)))
        norms.append(metrics["grad_norm/total"])
    assert min(norms[:2]) > 0
    assert norms[2] == 0 or losses["supervised"] == {"weight": 1.0}
