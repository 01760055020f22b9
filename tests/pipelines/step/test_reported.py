"""The report of a step on its rewards and losses, and how terms are weighed: small numbers worked out by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_attention import algorithm_params, training_params

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Credits
from grpo_pipeline.pipelines.step import mixing, reward_metrics, update
from grpo_pipeline.pipelines.step.experience import Report
from grpo_pipeline.pipelines.step.parts import entropy, reference

F64, NAN = torch.float64, math.nan
HIT = torch.tensor([[1.0, 3.0, NAN], [2.0, 2.0, 2.0]], dtype=F64)
SAME = torch.tensor([[5.0, 5.0, 5.0], [7.0, 7.0, 7.0]], dtype=F64)


def experience(credits: Any = None, *, drawn: int = 4, **parts: torch.Tensor) -> Any:
    rewards = combine_rewards(parts, dict.fromkeys(parts, 1.0) | {"free": 0.0} if "free" in parts else dict.fromkeys(parts, 1.0))
    advantages = SimpleNamespace(values=torch.tensor([[-1.0, 3.0, 0.0], [0.0, 0.0, 0.0]]), is_tied=torch.tensor([False, True]))
    return SimpleNamespace(
        rewards=SimpleNamespace(**{**vars(rewards), "credits": credits}), advantages=advantages, temperature=0.7,
        resampling={"reward/retries": 2.0}, rollouts=SimpleNamespace(actions=torch.zeros(2, 3, drawn)),
    )  # fmt: skip


def test_rewards_are_reported_over_the_samples_that_were_scored() -> None:
    found = {name: float(value) for name, value in reward_metrics.reward_metrics(experience(hit=HIT)).items()}
    spread = math.sqrt(2) / 2  # of 1 and 3 it is sqrt(2), of the second group 0
    assert found == pytest.approx(
        {
            "reward/mean": 2.0, "reward/std": spread, "reward/hit/mean": 2.0, "reward/hit/std": spread,
            "reward/hit/unscored_fraction": 1 / 6, "reward/hit/unscored_count": 1.0, "reward/ties_fraction": 0.5,
            "advantage/abs_mean": 4 / 6, "temperature": 0.7, "reward/retries": 2.0,
        }
    )  # fmt: skip
    nothing = reward_metrics.reward_metrics(experience(hit=HIT * NAN))
    assert nothing.keys() == {"reward/mean", "temperature"}
    assert math.isnan(nothing["reward/mean"])


def test_a_part_is_dead_where_no_group_tells_its_samples_apart() -> None:
    assert reward_metrics.silent_rewards(experience(hit=HIT, same=SAME)) == {"dead/reward_hit": 0.0, "dead/reward_same": 1.0}
    assert reward_metrics.silent_rewards(experience(hit=HIT, free=SAME)) == {"dead/reward_hit": 0.0}  # without a weight
    for nothing in (experience(hit=HIT * NAN), experience(drawn=0, hit=HIT)):
        assert reward_metrics.silent_rewards(nothing) == {}


def test_credit_is_the_mean_over_the_decisions_that_were_taken() -> None:
    values = torch.tensor([[[1.0, 9.0], [3.0, 5.0]], [[8.0, 9.0], [0.0, 9.0]]], dtype=F64)
    is_valid = torch.tensor([[[True, False], [True, True]], [[True, False], [True, False]]])
    found = reward_metrics._credit_metrics(Credits(values, is_valid))
    assert {name: float(value) for name, value in found.items()} == {"credit/decision_0": 3.0, "credit/decision_1": 5.0}
    assert reward_metrics._credit_metrics(None) == {}


def line(start: float, end: float) -> dict[str, Any]:
    return {"kind": "linear", "start": start, "end": end}


TERMS = {name: torch.tensor(float(10**place)) for place, name in enumerate(("policy", "kl", "entropy", "value"))}
STARTS = ("policy", "kl", "entropy", "value", "supervised")
WEIGHTS = {name: {"weight": line(start, start + 2.0)} for start, name in enumerate(STARTS, start=1)}


@pytest.mark.parametrize(
    ("steered", "weights"),
    [
        # In step 2 of 5 every weight is in the middle of its line.
        (None, {"policy": 2.0, "kl": 3.0, "entropy": 4.0, "value": 5.0, "supervised": 6.0}),
        (0.5, {"policy": 2.0, "kl": 3.0, "entropy": 0.5, "value": 5.0, "supervised": 6.0}),
        (0.0, {"policy": 2.0, "kl": 3.0, "entropy": 0.0, "value": 5.0, "supervised": 6.0}),
    ],
)
def test_each_term_has_the_weight_of_its_schedule(steered: float | None, weights: dict[str, float]) -> None:
    algorithm = algorithm_params(losses=WEIGHTS)
    state = SimpleNamespace(step=2, total_steps=5, coefficients={} if steered is None else {"entropy_weight": steered})
    supervised = {"supervised": torch.tensor(0.1)}
    each = {f"{name}_term": {name: term} for name, term in TERMS.items()}
    found = mixing.mix_losses(algorithm, SimpleNamespace(name="t"), state, supervised_term=supervised, **each)
    assert found.weights == pytest.approx(weights)
    assert float(found.total) == pytest.approx(sum(weights[name] * float(term) for name, term in (TERMS | supervised).items()))


def test_what_is_minimised_is_the_negative_of_the_entropy_that_is_reported() -> None:
    report = Report({"entropy": torch.tensor(-1.5), "kl": torch.tensor(0.25)}, {"entropy": 0.1, "kl": 0.2}, None, {})
    found = update._policy_state(report)
    assert found == {
        "policy/entropy": torch.tensor(1.5),
        "kl/reference": torch.tensor(0.25),
        "weight/entropy": 0.1,
        "weight/kl": 0.2,
    }


def test_gradients_are_reported_at_the_last_step_of_each_interval() -> None:
    training = training_params(gradient_report_every_steps=4)
    assert [step for step in range(13) if update.is_report_step(step, training)] == [3, 7, 11]
    assert all(update.is_report_step(step, training_params(gradient_report_every_steps=1)) for step in range(3))


@pytest.mark.parametrize(("step", "epoch", "moves"), [(1, 2, True), (1, 1, False), (0, 2, False)])
def test_the_reference_moves_with_the_last_update_of_every_second_batch(step: int, epoch: int, moves: bool) -> None:
    """An average of half and half."""
    rule = {"update": "ema", "every_steps": 2, "decay": 0.5}
    algorithm = algorithm_params(update_epochs=3, losses={"kl": {"reference": rule}})
    policy, follower = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    for module, value in ((policy, 3.0), (follower, 1.0)):
        torch.nn.init.constant_(module.weight, value)
    state = SimpleNamespace(step=step, total_steps=9, policy=policy, reference=follower, coefficients={})
    assert reference.move_reference(algorithm, state, epoch) is state
    assert follower.weight.item() == (2.0 if moves else 1.0)


@pytest.mark.parametrize(
    ("wanted", "coefficient"),
    # The coefficient is 0.1 and the entropy 1.0: 0.1 + 0.5 * (wanted - 1.0), within 0.05 and 0.3.
    [(1.2, 0.2), (0.96, 0.08), (0.4, 0.05), (2.0, 0.3)],
)
def test_the_weight_of_the_entropy_is_steered_within_its_bounds(wanted: float, coefficient: float) -> None:
    target = {"nats": wanted, "learning_rate": 0.5, "minimum": 0.05, "maximum": 0.3}
    algorithm = algorithm_params(update_epochs=2, losses={"entropy": {"target": target}, "kl": None})
    state = TrainState(torch.nn.Linear(1, 1), None, None, step=1, epoch=0, generator_seed=0, coefficients={"other": 1.0})
    report = Report({"entropy": torch.tensor(-1.0)}, {"entropy": 0.1}, None, {})
    assert entropy.steer_entropy(algorithm, state, report, 0) is state  # not before the last update of a batch
    found = entropy.steer_entropy(algorithm, state, report, 1)
    assert found.coefficients == {"other": 1.0, "entropy_weight": pytest.approx(coefficient)}
