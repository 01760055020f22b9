"""Options of an arm: other algorithms, value baselines, KL in the reward, other references, replay, retries."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_attention import (
    algorithm_params,
    constant,
    judge,
    make_batch,
    make_data,
    make_state,
    make_task,
    shake,
    training_params,
)
from tiny_choices import TinyChoices, own_rates
from torch import Tensor

from grpo_pipeline.core.params import AlgorithmParams
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.step import collect, update
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.tasks.attention.task import AttentionTask

TASK, DATA = make_task(), make_data()
ALGORITHMS: dict[str, dict[str, Any]] = {
    "reinforce": {"name": "reinforce", "update_epochs": 1},
    "ppo": {"name": "ppo", "advantage": {"baseline": "value"}, "value_clip": 0.2},
    "gspo": {"name": "gspo", "policy_loss": {"ratio_level": "sequence"}},
    "cispo": {"name": "cispo", "policy_loss": {"ratio_cap": 4.0}},
    "sapo": {"name": "sapo"},
    "dr_grpo": {"name": "dr_grpo", "advantage": {"method": "mean_only"}, "policy_loss": {"reduction": "constant"}},
    "dapo": {"name": "dapo", "policy_loss": {"reduction": "per_decision", "clip_high": 0.28}},
    "bnpo": {"name": "bnpo", "policy_loss": {"reduction": "per_decision_local"}},
    "joint": {"policy_loss": {"ratio_level": "joint"}},
    "per_reward": {"advantage": {"method": "per_reward"}},
    "top_k": {"advantage": {"top_k_ratio": 0.5}},
    "k3": {"kl_estimator": "k3"},
    "ratio_k3": {"kl_estimator": "ratio_k3"},
    "kl_in_reward": {"kl_placement": "reward", "kl_estimator": "k1", "kl_weight": 0.5},
    "rollout_kl": {"rollout_kl_weight": 0.1},
}
PURE = {"supervised_weight": 0.0, "value_weight": 0.0, "entropy_weight": 0.0, "kl_weight": 0.0}


def moved(algorithm: AlgorithmParams, *, step: int = 0, scale: float = 0.3) -> TrainState:
    state = make_state(TASK, DATA, algorithm)
    shake(state.policy, seed=1, scale=scale)
    return replace(state, step=step, total_steps=10)


def experience_of(algorithm: AlgorithmParams, state: TrainState) -> Any:
    training, batch = training_params(), make_batch(TASK)
    context, replicated = TASK.encode(state.policy, batch), TASK.replicate(batch, training.group_size)
    rollouts, temperature = collect.sample_rollouts(algorithm, training, TASK, state, context)
    return judge(TASK, algorithm, state, replicated, context, rollouts, temperature)


@pytest.mark.parametrize("changes", ALGORITHMS.values(), ids=ALGORITHMS.keys())
def test_every_algorithm_raises_what_it_rewards(changes: dict[str, Any]) -> None:
    """Six steps on one batch, the policy alone: the advantage-weighted log-likelihood of the first rollouts goes up."""
    value = {"value_weight": 0.1} if changes.get("name") == "ppo" else {}
    kept = {name: 0.0 for name in PURE if name not in changes} | value
    algorithm = algorithm_params(**{**kept, "policy_weight": constant(1.0)} | changes)
    training = training_params(optimizer={"learning_rates": {"encoder": 0.0, "mask_decoder": 0.0, "class_decoder": 0.0}})
    state = moved(algorithm)
    first = experience_of(algorithm, state)
    # The arm's own: an untrained value, say, is no mean of the group, and moves all samples of a prompt one way.
    advantages = first.advantages.values

    def weighted() -> float:
        context = TASK.encode(state.policy, first.batch)
        scores = TASK.score(state.policy, context, first.rollouts, temperature=1.0)
        return float((advantages * scores.logprobs.detach().sum(-1)).sum())

    before, runner, ratios = weighted(), StepRunner(TASK, algorithm, training), []
    for _ in range(6):
        state, metrics = runner(state, make_batch(TASK))
        ratios.append(metrics["policy/ratio_first"])
    assert ratios == [1.0] * 6
    assert weighted() > before + 1e-3


def test_a_value_baseline_is_the_predicted_value() -> None:
    algorithm = algorithm_params(name="ppo", advantage={"method": "mean_only", "baseline": "value"})
    experience = experience_of(algorithm, moved(algorithm))
    values = experience.baseline.values
    assert float(values.std()) > 0
    torch.testing.assert_close(experience.advantages.values, experience.rewards.total - values.double()[:, None])


def test_under_per_reward_the_kl_is_subtracted_from_the_advantage_and_is_not_divided_by_a_deviation() -> None:
    """The gradient of the policy holds it: without the penalty the advantages are another arm's."""
    changes: dict[str, Any] = {"advantage": {"method": "per_reward"}, "kl_placement": "reward", "kl_estimator": "k1"}
    free, paid = (algorithm_params(**changes, kl_weight=weight) for weight in (0.0, 0.5))
    state = moved(paid)
    without, experience = experience_of(free, state), experience_of(paid, state)
    k1 = (experience.rollouts.logprobs - experience.reference.logprobs).sum(-1).double()
    expected = without.advantages.values - 0.5 * (k1 - k1.mean(1, keepdim=True))
    torch.testing.assert_close(experience.advantages.values, expected, atol=1e-6, rtol=0)
    assert float((experience.advantages.values - without.advantages.values).abs().max()) > 0.05
    gradients = []
    for algorithm, collected in ((free, without), (paid, experience)):
        terms, _ = update.policy_terms(algorithm, training_params(), TASK, state, collected, 0)
        gradients.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(terms["policy"], [*state.policy.policy.trunk.parameters()])])
        )
    assert float((gradients[0] - gradients[1]).abs().max()) > 1e-4


def test_a_group_whose_parts_differ_while_their_sum_ties_is_not_drawn_again_under_per_reward() -> None:
    """Parts +-1 under the weights 1 and 2 of opposite size: the totals are all 0, the scores of the parts are not."""

    @dataclass(frozen=True)
    class Opposed(AttentionTask):
        def reward(self, batch: Any, rollouts: Rollouts, outcomes: Any) -> Any:
            part = torch.arange(rollouts.actions.shape[1], dtype=torch.float64).repeat(rollouts.actions.shape[0], 1)
            return {"up": 2.0 * part, "down": -part}, {"up": 1.0, "down": 2.0}

    task = Opposed(TASK.model, TASK.rewards, TASK.supervised, TASK.image_size, TASK.device)
    retries = {}
    for method in ("group", "per_reward"):
        algorithm = algorithm_params(dynamic_sampling={"max_retries": 2}, advantage={"method": method})
        _, metrics = StepRunner(task, algorithm, training_params())(make_state(task, DATA, algorithm), make_batch(task))
        retries[method] = (metrics["reward/retries"], metrics["reward/ties_fraction"])
    assert retries == {"group": (2.0, 1.0), "per_reward": (0.0, 0.0)}


@pytest.mark.parametrize(("level", "reference_update"), [("decision", "k3"), ("joint", "k3"), ("decision", "rollout")])
def test_under_constant_a_kl_is_divided_by_what_the_policy_loss_is_divided_by(level: str, reference_update: str) -> None:
    """The sum over decisions by rows * max_decisions (or rows, for joint samples), as that of the surrogate."""
    longest = None if level == "joint" else 8
    algorithm = algorithm_params(
        policy_loss={"reduction": "constant", "ratio_level": level, "max_decisions": longest},
        kl_estimator="k3",
        rollout_kl_weight=0.1,
    )
    state = moved(algorithm)
    experience = experience_of(algorithm, state)
    shake(state.policy.policy, seed=4, scale=0.05)
    terms, _ = update.policy_terms(algorithm, training_params(), TASK, state, experience, 1)
    now = TASK.score(state.policy, TASK.detach(experience.context), experience.rollouts, temperature=1.0).logprobs.detach()
    rollouts = experience.rollouts
    other = experience.reference.logprobs if reference_update == "k3" else rollouts.logprobs
    x = other - now if reference_update == "k3" else now - other
    each = (x.exp() - x - 1).clamp(max=10.0).masked_fill(~rollouts.is_valid, 0.0)
    rows = each.shape[0] * each.shape[1]
    expected = each.sum() / (rows if level == "joint" else rows * 8)
    got = terms["kl" if reference_update == "k3" else "kl_rollout"]
    assert float(expected) > 1e-3
    torch.testing.assert_close(got.detach(), expected, atol=1e-6, rtol=1e-4)


def test_a_term_that_the_task_cannot_give_is_refused_and_not_dropped() -> None:
    algorithm = algorithm_params()
    state = moved(algorithm)
    experience = experience_of(algorithm, state)
    blind = replace(experience, reference=replace(experience.reference, log_probs_full=None))
    with pytest.raises(ValueError, match="kl_estimator must be k2, k3 or ratio_k3 for a task that does not give the whole"):
        update.policy_terms(algorithm, training_params(), TASK, state, blind, 0)

    class WithoutValues(AttentionTask):
        def score(self, *args: Any, **kwargs: Any) -> Any:
            return replace(super().score(*args, **kwargs), values=None)

    task = WithoutValues(TASK.model, TASK.rewards, TASK.supervised, TASK.image_size, TASK.device)
    with pytest.raises(ValueError, match="value_weight must be 0 for a policy without a value head"):
        update.policy_terms(algorithm, training_params(), task, state, experience, 0)


@dataclass(frozen=True)
class Coarse(AttentionTask):
    """Pays 1 for a set whose first point is cell 5, else 0: most groups tie."""

    def reward(self, batch: Any, rollouts: Rollouts, outcomes: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
        return {"hit": (rollouts.actions[..., 0] == 5).float()}, {"hit": 1.0}


def test_tied_groups_are_drawn_again_and_the_others_are_kept() -> None:
    task = Coarse(TASK.model, TASK.rewards, TASK.supervised, TASK.image_size, TASK.device)
    algorithm, training = algorithm_params(dynamic_sampling={"max_retries": 20}), training_params()
    state, batch = make_state(task, DATA, algorithm), make_batch(task)
    context, replicated = task.encode(state.policy, batch), task.replicate(batch, 4)
    sampled, temperature = collect.sample_rollouts(algorithm, training, task, state, context)
    drawn = collect.dynamic_sampling(algorithm, training, task, state, context, replicated, sampled, temperature)
    before, after = ((r.actions[..., 0] == 5).sum(1) for r in (sampled, drawn.rollouts))
    was_tied = (before == 0) | (before == 4)
    assert int(was_tied.sum()) >= 2
    assert not bool(((after == 0) | (after == 4)).any())
    assert torch.equal(drawn.rollouts.actions[~was_tied], sampled.actions[~was_tied])
    assert drawn.report["reward/ties_before_retries"] == pytest.approx(float(was_tied.double().mean()))
    again = collect.dynamic_sampling(algorithm, training, task, state, context, replicated, sampled, temperature)
    assert torch.equal(again.rollouts.actions, drawn.rollouts.actions)  # a function of (seed, step, attempt)
    logprobs = task.score(state.policy, context, drawn.rollouts, temperature=temperature).logprobs.detach()
    torch.testing.assert_close(logprobs, drawn.rollouts.logprobs, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("spread", "advantage"), [(0.0, {}), (0.01, {"tie_tolerance": 0.5})])
def test_retries_are_bounded_and_their_number_is_logged(spread: float, advantage: dict[str, float]) -> None:
    """Samples tie that earn the same, or differ by less than the tolerance."""

    @dataclass(frozen=True)
    class Flat(AttentionTask):
        def reward(self, batch: Any, rollouts: Rollouts, outcomes: Any) -> Any:
            prompts, samples = rollouts.actions.shape[:2]
            return {"flat": spread * torch.arange(samples, dtype=torch.float64).repeat(prompts, 1)}, {"flat": 1.0}

    task = Flat(TASK.model, TASK.rewards, TASK.supervised, TASK.image_size, TASK.device)
    algorithm = algorithm_params(dynamic_sampling={"max_retries": 3}, advantage=advantage)
    training = training_params(gradient_report_every_steps=1)
    _, metrics = StepRunner(task, algorithm, training)(make_state(task, DATA, algorithm), make_batch(task))
    assert metrics["reward/retries"] == 3.0
    assert metrics["reward/ties_fraction"] == 1.0
    assert metrics["dead/reward_flat"] == float(spread == 0)
    assert metrics["dead/policy"] == 1.0


def test_a_sample_of_which_one_part_was_scored_pays_its_kl_under_per_reward() -> None:
    first = torch.tensor([[0.0, 1.0, 2.0, 4.0]])
    second = torch.tensor([[math.nan, 2.0, 1.0, 0.0]])
    rewards = combine_rewards({"first": first, "second": second}, {"first": 1.0, "second": 1.0})
    algorithm = algorithm_params(advantage={"method": "per_reward"})
    given = [replace(rewards, kl_penalty=torch.tensor([[kl, 0.0, 0.0, 0.0]])) for kl in (0.0, 1.0)]
    baseline, once = collect.Baseline(None), torch.ones(1, 4)
    free, paid = (collect.compute_advantages(algorithm, TASK, None, one, baseline, once).values for one in given)
    torch.testing.assert_close(paid - free, torch.tensor([[-0.75, 0.25, 0.25, 0.25]], dtype=torch.float64))


def test_samples_without_a_value_are_counted_and_silence_no_part() -> None:
    """One sample of each group is not scored; the others differ in one part and agree in the other."""

    @dataclass(frozen=True)
    class Gaps(AttentionTask):
        def reward(self, batch: Any, rollouts: Rollouts, outcomes: Any) -> Any:
            prompts, samples = rollouts.actions.shape[:2]
            differs = torch.arange(samples, dtype=torch.float64).repeat(prompts, 1)
            differs[:, 0] = torch.nan
            return {"differs": differs, "same": torch.full_like(differs, 0.1)}, {"differs": 1.0, "same": 1.0}

    task = Gaps(TASK.model, TASK.rewards, TASK.supervised, TASK.image_size, TASK.device)
    algorithm, training = algorithm_params(), training_params(gradient_report_every_steps=1)
    _, metrics = StepRunner(task, algorithm, training)(make_state(task, DATA, algorithm), make_batch(task))
    assert metrics["dead/reward_differs"] == 0.0
    assert metrics["dead/reward_same"] == 1.0
    assert metrics["reward/differs/unscored_fraction"] == pytest.approx(1 / training.group_size)
    assert "reward/same/unscored_fraction" not in metrics


def test_samples_that_were_not_scored_leave_the_reward_metrics() -> None:
    rewards = torch.tensor([[1.0, float("nan"), 3.0, 5.0], [2.0, 2.0, 2.0, 2.0]])
    metrics = update._component_metrics({"class": rewards})
    # [1, 3, 5]: mean 3, standard deviation 2; the tied group: 2 and 0
    assert float(metrics["reward/class/mean"]) == pytest.approx((1 + 3 + 5 + 4 * 2) / 7)
    assert float(metrics["reward/class/std"]) == pytest.approx((2 + 0) / 2)


FALLING = {"kind": "linear", "start": 1.0, "end": 0.0}


@pytest.mark.parametrize("micro_batch_size", [None, 4])
@pytest.mark.parametrize(
    ("arm", "changes"),
    [
        ("grpo", PURE | {"supervised_weight": 1.0, "policy_weight": FALLING}),  # the second update epoch has no supervised loss
        ("grpo", PURE | {"policy_weight": FALLING}),
        ("supervised", {"supervised_weight": FALLING}),
    ],
)
def test_a_schedule_may_end_at_zero(arm: str, changes: dict[str, Any], micro_batch_size: int | None) -> None:
    """At the last step nothing is weighed: the run ends there, with a gradient of 0, and does not stop with an error."""
    task, algorithm = TinyChoices(), algorithm_params(arm, **changes)
    training = own_rates(training_params(epochs=3, batch_size=8, group_size=4, micro_batch_size=micro_batch_size), 0.1)
    state, runner, norms = make_state(task, None, algorithm, training), StepRunner(task, algorithm, training), []
    for _ in range(3):
        state, metrics = runner(state, task.make_batch(None, np.arange(8)))
        norms.append(metrics["grad_norm/total"])
    assert norms[0] > 0
    assert norms[1] > 0
    assert norms[2] == 0 or changes["supervised_weight"] == 1.0
