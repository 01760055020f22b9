"""Samples of another engine: their weights beside loops, the expected gradient by enumeration, and what must not change."""

import math
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from tiny_attention import algorithm_params, training_params
from tiny_choices import TinyChoices, own_rates
from tiny_engines import Alike, Elsewhere
from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.types import Advantages
from grpo_pipeline.pipelines.step.parts.correction import ratios, report_mismatch, weigh_advantages
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.pipelines.training.shown_samples import add_rewards
from grpo_pipeline.pipelines.training.start import build_state

F64 = torch.float64
SHAPE = (2, 3, 4)
PARTS: dict[str, dict[str, Any]] = {
    "truncate": {"kind": "truncate", "cap": 1.2},
    "mask": {"kind": "mask", "cap": 1.2},
    "mask with a floor": {"kind": "mask", "cap": 1.2, "floor": 0.8},
    "without a bound that bites": {"kind": "truncate", "cap": 1e9},
}
TRAINING = own_rates(training_params(batch_size=8, group_size=4, micro_batch_size=None), 0.1)


def arm(part: dict[str, Any], level: str, **changes: Any) -> AlgorithmParams:
    return algorithm_params(correction=part | {"level": level}, **changes)


def mismatch() -> tuple[Tensor, Tensor]:
    """Return differences of log-probabilities and which decisions were taken, both [P, G, L]."""
    generator = torch.Generator().manual_seed(0)
    is_valid = torch.arange(SHAPE[-1]) < torch.tensor([[4, 1, 3], [2, 4, 4]])[..., None]
    return (0.3 * torch.randn(SHAPE, dtype=F64, generator=generator)).masked_fill(~is_valid, 0.0), is_valid


def weight(part: dict[str, Any], ratio: float) -> float:
    """Weigh a single ratio by hand."""
    if part["kind"] == "truncate":
        return min(ratio, part["cap"])
    return ratio if part.get("floor", 0.0) <= ratio <= part["cap"] else 0.0


@pytest.mark.parametrize("of_decisions", [False, True], ids=["advantages of samples", "of decisions"])
@pytest.mark.parametrize("level", ["decision", "sequence"])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_weights_are_those_of_a_loop(part: dict[str, Any], level: str, of_decisions: bool) -> None:
    apart, _ = mismatch()
    values = torch.randn(SHAPE if of_decisions else SHAPE[:2], dtype=F64, generator=torch.Generator().manual_seed(1))
    found = weigh_advantages(arm(part, level), Advantages(values, torch.zeros(2, dtype=torch.bool)), apart).values
    assert found.shape == (SHAPE if of_decisions or level == "decision" else SHAPE[:2])
    for p, g, t in product(*map(range, SHAPE)):
        ratio = math.exp(float(apart[p, g, t] if level == "decision" else apart[p, g].sum()))
        own = float(values[p, g, t] if of_decisions else values[p, g])
        at = found[p, g, t] if found.ndim == 3 else found[p, g]
        assert float(at) == pytest.approx(own * weight(part, ratio), abs=1e-12)


@pytest.mark.parametrize("level", ["decision", "sequence"])
def test_metrics_are_those_of_a_loop(level: str) -> None:
    algorithm, (apart, is_valid) = arm(PARTS["mask with a floor"], level), mismatch()
    held: Any = type("Held", (), {"mismatch": apart, "rollouts": type("Drawn", (), {"is_valid": is_valid})})
    found = report_mismatch(algorithm, {"step": 1.0}, held, 0)
    of = [float(x) for x in apart[is_valid]]
    logs = of if level == "decision" else [float(x) for x in apart.sum(-1).flatten()]
    expected = {
        "step": 1.0,
        "engine/mismatch_kl": sum(math.exp(x) - 1 - x for x in of) / len(of),
        "engine/mismatch_max": max(map(abs, of)),
        "engine/weights_capped": sum(not 0.8 <= math.exp(x) <= 1.2 for x in logs) / len(logs),
    }
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected)
    assert 0 < expected["engine/weights_capped"] < 1
    assert report_mismatch(algorithm, {"step": 1.0}, held, 1) == {"step": 1.0}


def distributions(logits: Tensor) -> Tensor:
    """Return log-probabilities [9, 2] of two choices of three, the second of which knows the first; logits [4, 3]."""
    log_p = logits.log_softmax(-1)
    return torch.stack([torch.stack((log_p[0, a], log_p[1 + a, b])) for a, b in product(range(3), repeat=2)])


def test_the_expected_gradient_is_exact_where_no_cap_bites() -> None:
    """All nine samples, each as often as the engine draws it; a weight for each decision knows nothing of the other one."""
    generator = torch.Generator().manual_seed(2)
    policy = torch.randn(4, 3, dtype=F64, generator=generator).requires_grad_()
    engine = distributions(torch.randn(4, 3, dtype=F64, generator=generator))
    rewards = torch.randn(9, dtype=F64, generator=generator)

    def gradient(algorithm: AlgorithmParams, scored: Tensor, drawn: Tensor) -> Tensor:
        """Return the gradient of the mean loss over the engine's draws; logprobs [9, L]."""
        often = drawn.sum(-1).exp()  # [9], how often the engine draws each
        advantages = Advantages((2 * 9 * often * rewards)[None], torch.zeros(1, dtype=torch.bool))
        apart = (scored.detach() - drawn)[None]
        weighed = weigh_advantages(algorithm, advantages, apart).values
        is_valid = torch.ones(1, *scored.shape, dtype=torch.bool)
        assert algorithm.losses.policy is not None
        loss = policy_loss(scored[None], scored.detach()[None], weighed, is_valid, algorithm.losses.policy)
        return torch.autograd.grad(loss, policy)[0]

    whole = {"kind": "reinforce", "clip_low": None, "clip_high": None, "reduction": "constant", "max_decisions": 2}
    plain = {"losses": {"policy": whole}, "update_epochs": 1}
    unbounded = {"kind": "truncate", "cap": 1e9}
    (exact,) = torch.autograd.grad(-(distributions(policy).sum(-1).exp() * rewards).sum(), policy)
    of_samples = gradient(arm(unbounded, "sequence", **plain), distributions(policy), engine)
    torch.testing.assert_close(of_samples, exact, atol=1e-12, rtol=0)
    of_decisions = gradient(arm(unbounded, "decision", **plain), distributions(policy), engine)
    assert float((of_decisions - exact).abs().max()) > 1e-2
    capped = gradient(arm({"kind": "truncate", "cap": 1.0}, "sequence", **plain), distributions(policy), engine)
    assert float((capped - exact).abs().max()) > 1e-2
    # Of a single decision both levels are the same, and exact.
    single = distributions(policy)[:, :1]
    (exact,) = torch.autograd.grad(-((single.sum(-1).exp() * rewards)[::3]).sum(), policy)
    rewards = rewards.masked_fill(torch.arange(9) % 3 != 0, 0.0)
    for level in ("decision", "sequence"):
        found = gradient(arm(unbounded, level, **plain), distributions(policy)[:, :1], engine[:, :1])
        torch.testing.assert_close(found, exact, atol=1e-12, rtol=0)


def stepped(task: TinyChoices, algorithm: AlgorithmParams) -> Any:
    state = build_state(algorithm, TRAINING, 0, task, None)
    return StepRunner(task, algorithm, TRAINING).run(state, task.make_batch(None, np.arange(8)))


@pytest.mark.parametrize("level", ["decision", "sequence"])
def test_an_engine_that_agrees_changes_no_number(level: str) -> None:
    plain, corrected = stepped(TinyChoices(), algorithm_params()), stepped(Alike(), arm(PARTS["mask with a floor"], level))
    for one, other in zip(plain.state.policy.parameters(), corrected.state.policy.parameters(), strict=True):
        assert torch.equal(one, other)
    times = {"step_seconds", "samples_per_second", "peak_memory_mb"}
    own = {name: corrected.metrics[name] for name in corrected.metrics.keys() - plain.metrics.keys()}
    assert own == {"engine/mismatch_kl": 0.0, "engine/mismatch_max": 0.0, "engine/weights_capped": 0.0}
    for name in plain.metrics.keys() - times:
        assert corrected.metrics[name] == pytest.approx(plain.metrics[name], nan_ok=True), name


def test_a_step_is_taken_from_the_policy_and_weighed_by_what_the_engine_said() -> None:
    task, algorithm = Elsewhere(), arm(PARTS["truncate"], "decision")
    held, state = stepped(task, algorithm).experience, build_state(algorithm, TRAINING, 0, task, None)
    context = task.encode(state.policy, held.batch)
    ours, theirs = (
        task.score(state.policy, context, held.rollouts, temperature=t * held.temperature).logprobs for t in (1.0, 1.5)
    )
    assert torch.equal(held.rollouts.logprobs, ours)
    torch.testing.assert_close(held.mismatch, (ours - theirs).detach().masked_fill(~held.rollouts.is_valid, 0.0))
    without = stepped(Elsewhere(), arm({"kind": "truncate", "cap": 1.0}, "sequence")).experience.advantages.values
    assert held.advantages.values.shape == held.rollouts.actions.shape
    assert without.shape == held.rollouts.actions.shape[:2]
    assert float(ratios(algorithm, held.mismatch).max()) > 1.2


def test_the_table_of_the_first_step_has_a_row_for_each_sample() -> None:
    held = stepped(Elsewhere(), arm(PARTS["truncate"], "decision")).experience
    table = add_rewards(pd.DataFrame({"sample": range(32)}), held.rewards, held.advantages)
    assert table["advantage"].tolist() == pytest.approx(held.advantages.values.mean(2).flatten().tolist())


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_log_probability_that_is_no_number_is_named(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Elsewhere):
        def sample(self, *args: Any, **kwargs: Any) -> Any:
            drawn = super().sample(*args, **kwargs)
            drawn.logprobs[2, 1, 0] = bad
            return drawn

    with pytest.raises(ValueError, match="engine must be finite, got .* at decision 0 of sample 1 of prompt 2, step 0 of tiny"):
        stepped(Broken(), arm(PARTS["mask"], "decision"))


REPLAY = {"capacity": 4, "max_age_steps": 2, "share": 0.5, "importance_cap": 2.0}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beside a replay": ({"replay": REPLAY}, "replay must be null with correction"),
    "decisions of a joint ratio": ({"losses": {"policy": {"ratio_level": "joint"}}}, "correction.level must be sequence"),
    "of a control": ({"losses": dict.fromkeys(("policy", "kl", "entropy", "value"))}, "correction must be null without losses"),
    "a cap below one": ({"correction": {"cap": 0.5}}, "greater than or equal to 1"),
    "a floor above one": ({"correction": {"kind": "mask", "floor": 1.5}}, "less than or equal to 1"),
    "a floor of a truncation": ({"correction": {"floor": 0.5}}, "Extra inputs"),
}


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], sentence: str) -> None:
    part = {"kind": "truncate", "level": "decision"} | changes.get("correction", {})
    with pytest.raises(ValidationError, match=sentence):
        algorithm_params(**changes | {"correction": part, "update_epochs": 1})
