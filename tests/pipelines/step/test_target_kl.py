"""Updates of a batch end where the policy has gone far enough: what was done until then is done, to the bit."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_attention import merge, training_params
from tiny_choices import TinyChoices, own_rates

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.pipelines.training.start import build_state

TASK, FAR, EPOCHS = TinyChoices(), 1e6, 6
TRAINING = own_rates(training_params(epochs=1, batch_size=8, group_size=4, temperature={"start": 1.0}), 0.3)
BASE: dict[str, Any] = {
    "losses": {
        "supervised": {"weight": 0.5}, "policy": {"kind": "grpo"}, "kl": {"weight": 0.1}, "entropy": {"weight": 0.05},
    },
    "advantage": {"method": "group", "std": "sample"},
}  # fmt: skip


def arm(**changes: Any) -> AlgorithmParams:
    return AlgorithmParams.model_validate(merge(BASE, {"update_epochs": EPOCHS, **changes}))


def stepped(algorithm: AlgorithmParams, size: int | None = None) -> tuple[TrainState, dict[str, float]]:
    """Take one step of a batch of all prompts; plain gradient descent, so that rounding of pieces stays rounding."""
    training = TRAINING.model_copy(update={"micro_batch_size": size})
    state = build_state(algorithm, training, 0, TASK, None)
    state = replace(state, optimizer=torch.optim.SGD(state.policy.parameters(), lr=2.0))
    return StepRunner(TASK, algorithm, training)(state, TASK.make_batch(None, TASK.rows(None, "train")))


def bits(state: TrainState) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in state.policy.parameters()]


def kl_before(update: int) -> float:
    """Return kl/rollout as the loop measured it before an update, from means over one update more and one less."""
    means = [stepped(arm(update_epochs=n))[1]["kl/rollout"] * n for n in (update, update + 1)]
    return means[1] - means[0]


@pytest.mark.parametrize("size", [None, 3])
def test_a_batch_stops_before_the_first_update_that_would_begin_too_far(size: int | None) -> None:
    between = (kl_before(2) + kl_before(3)) / 2
    assert kl_before(2) < between < kl_before(3)
    state, metrics = stepped(arm(target_kl=between), size)
    wanted, _ = stepped(arm(update_epochs=3), size)
    assert bits(state) == bits(wanted)
    assert metrics["policy/updates"] == 3.0


def test_a_target_that_is_never_reached_changes_no_bit() -> None:
    (state, metrics), (wanted, plain) = stepped(arm(target_kl=FAR)), stepped(arm())
    assert bits(state) == bits(wanted)
    assert metrics["policy/updates"] == EPOCHS
    assert "policy/updates" not in plain


def test_a_batch_has_one_update_at_least_and_is_then_over_for_what_follows_batches() -> None:
    steered = {"nats": 0.5, "learning_rate": 0.1, "minimum": 0.0, "maximum": 1.0}
    follows = {"losses": {"kl": {"reference": {"update": "copy"}}, "entropy": {"target": steered}}}
    state, metrics = stepped(arm(target_kl=1e-12, **follows))
    wanted, _ = stepped(arm(update_epochs=1, **follows))
    assert metrics["policy/updates"] == 1.0
    assert bits(state) == bits(wanted)
    assert [*map(torch.equal, state.reference.parameters(), state.policy.parameters())] == [True] * 4
    assert state.coefficients["entropy_weight"] != BASE["losses"]["entropy"]["weight"]
