import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tiny_attention import (
    algorithm_params,
    constant,
    differing,
    judge,
    make_batch,
    make_data,
    make_state,
    make_task,
    shake,
    training_params,
    weights,
)
from torch import Tensor

from grpo_pipeline.core.params import AlgorithmParams
from grpo_pipeline.core.policy_gradient.losses import NonFiniteLossError
from grpo_pipeline.core.sampling.plackett_luce import log_policy
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.step import collect, update
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.tasks.attention.task import AttentionTask

TASK, DATA = make_task(), make_data()


def moved_state(algorithm: AlgorithmParams | None = None, *, step: int = 0) -> TrainState:
    """Return a state whose policy has left its reference."""
    state = make_state(TASK, DATA, algorithm)
    shake(state.policy, seed=1)
    return replace(state, step=step)


def collected(state: TrainState, algorithm: AlgorithmParams, **training: Any) -> Any:
    params, batch = training_params(**training), make_batch(TASK)
    context, replicated = TASK.encode(state.policy, batch), TASK.replicate(batch, params.group_size)
    rollouts, temperature = collect.sample_rollouts(algorithm, params, TASK, state, context)
    return judge(TASK, algorithm, state, replicated, context, rollouts, temperature)


def test_weight_zero_leaves_the_graph_and_the_control_has_no_policy_term():
    off = {f"{name}_weight": 0.0 for name in ("supervised", "kl", "value")} | {"entropy_weight": constant(0.0)}
    algorithm = algorithm_params(**off, policy_weight=constant(0.5))
    state = moved_state(algorithm)
    experience = collected(state, algorithm)
    terms, diagnostics = update.policy_terms(algorithm, training_params(), TASK, state, experience, 0)
    supervised = update.supervised_term(TASK, state, experience, 0)
    losses = update.mix_losses(algorithm, TASK, state, terms, supervised, diagnostics)
    torch.testing.assert_close(losses.total, 0.5 * terms["policy"])
    assert losses.weights == {"supervised": 0.0, "policy": 0.5, "entropy": 0.0, "value": 0.0}
    groups = TASK.parameter_groups(state.policy)
    silent = [*groups["value_head"], *groups["class_decoder"], *groups["mask_decoder"]]
    assert torch.autograd.grad(losses.total, silent, allow_unused=True) == (None,) * len(silent)
    control = algorithm_params("supervised")
    experience = collected(state, control)
    assert update.policy_terms(control, training_params(), TASK, state, experience, 0) == ({}, {})
    assert experience.reference.log_probs_full is None


@torch.no_grad()
def test_kl_is_against_the_frozen_reference():
    algorithm = algorithm_params()
    state = moved_state(algorithm)
    experience = collected(state, algorithm)
    terms, diagnostics = update.policy_terms(algorithm, training_params(), TASK, state, experience, 0)
    assert abs(diagnostics["kl/rollout"]) < 1e-12  # the rollout policy is the present one: a KL to it would be 0
    context = TASK.encode(state.policy, make_batch(TASK))
    logits = state.policy.policy(context.features, context.texture)[0]
    untrained = context.cells / context.cells.sum(1, keepdim=True)  # the reference is the untrained, uniform policy
    present = log_policy(logits, context.cells).exp()
    naive = torch.where(context.cells, present * (present / untrained).log(), 0.0).sum(1).mean()
    assert float(naive) > 1e-3
    torch.testing.assert_close(terms["kl"], naive, atol=1e-6, rtol=1e-5)


@dataclass(frozen=True)
class Spoilt(AttentionTask):
    """Turns one term of the loss into NaN."""

    term: str = "supervised"

    def supervised_loss(self, *args: Any) -> Tensor:
        return super().supervised_loss(*args) * (math.nan if self.term == "supervised" else 1.0)

    def score(self, *args: Any, **kwargs: Any) -> Any:
        scores = super().score(*args, **kwargs)
        return replace(scores, values=scores.values * math.inf) if self.term == "value" else scores


@pytest.mark.parametrize(("term", "got"), [("supervised", "nan"), ("value", "(nan|inf)")])
def test_a_term_that_is_not_finite_stops_the_run(term: str, got: str):
    task = Spoilt(TASK.model, TASK.rewards, TASK.supervised, TASK.image_size, TASK.device, term=term)
    state = moved_state(step=7)
    before, moments = weights(state.policy), len(state.optimizer.state)
    message = f"loss term '{term}' of task 'attention' must be finite, got {got} at step 7; the weights are unchanged"
    with pytest.raises(NonFiniteLossError, match=message):
        StepRunner(task, algorithm_params(), training_params())(state, make_batch(TASK))
    assert differing(before, weights(state.policy)) == []
    assert len(state.optimizer.state) == moments == 0
