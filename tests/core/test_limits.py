"""A number exactly at its limit is taken and means what it says; what lies beyond it is refused where its concept is tested."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from grpo_pipeline.core.objective.surrogates.cispo import Cispo
from grpo_pipeline.core.objective.surrogates.clipped import Grpo
from grpo_pipeline.core.policy_gradient.advantage_changes import apply_prompt_weights, keep_top
from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.entropy import AdaptiveEntropy
from grpo_pipeline.core.policy_gradient.hybrid_loss import hybrid_loss
from grpo_pipeline.core.policy_gradient.returns import discounted_returns, generalized_advantages
from grpo_pipeline.core.policy_gradient.value_loss import value_loss
from grpo_pipeline.core.policy_gradient.whitening import whiten
from grpo_pipeline.core.rewards import apply_failure_rule, combine_rewards, subtract_kl
from grpo_pipeline.core.sampling.linear_logprobs import chunked_logprobs
from grpo_pipeline.core.sampling.truncation import kept_choices
from grpo_pipeline.core.schedules import Schedule, mixing_weights, value_at
from grpo_pipeline.core.training.reference import ReferenceUpdate, update_reference
from grpo_pipeline.core.training.replay_buffer import ReplayBuffer
from grpo_pipeline.core.training.replay_weights import importance_weights
from grpo_pipeline.core.types import Advantages

F64 = torch.float64
R = torch.tensor([[1.0, 3.0]], dtype=F64)
ONE = torch.ones(1, 2, dtype=torch.bool)


def numbers(x: Any) -> Any:
    return x.tolist() if isinstance(x, torch.Tensor) else x


def moved(rule: ReferenceUpdate, step: int) -> list[float]:
    """Return whether a reference of 1 beside a policy of 3 moves, and what it is afterwards."""
    reference, policy = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))
    torch.nn.init.constant_(reference.weight, 1.0)
    torch.nn.init.constant_(policy.weight, 3.0)
    return [float(update_reference(reference, policy, rule, step)), reference.weight.item()]


LIMITS: dict[str, tuple[Callable[[], Any], Any]] = {
    # sqrt(2) is the deviation of 1 and 3.
    "eps of 0": (lambda: compute_advantages(R, eps=0.0).values, [[-(0.5**0.5), 0.5**0.5]]),
    "tolerance of 0": (lambda: compute_advantages(R, method="mean_only", tie_tolerance=0.0).values, [[-1.0, 1.0]]),
    "all are kept": (lambda: keep_top(Advantages(R, ONE[:, 0]), R, ratio=1.0).values, [[1.0, 3.0]]),
    "a prompt without weight": (lambda: apply_prompt_weights(Advantages(R, ONE[:, 0]), torch.zeros(1)).values, [[0.0, 0.0]]),
    "whitened without eps": (lambda: whiten(R, ONE, scope="batch", eps=0.0), [[-(0.5**0.5), 0.5**0.5]]),
    "no clip from below": (lambda: Grpo(clip_low=1.0).clip_low, 1.0),
    "a cap of 1": (lambda: Cispo(ratio_cap=1.0).ratio_cap, 1.0),
    "one decision at most": (lambda: Grpo(reduction="constant", max_decisions=1).max_decisions, 1),
    # 0.1 + 0.5 * (0.1 - 9), held at 0.
    "an entropy weight of 0": (
        lambda: AdaptiveEntropy(target=0.1, learning_rate=0.5, minimum=0.0, maximum=1.0).step(0.1, 9.0),
        0.0,
    ),
    "no weight of one term": (lambda: hybrid_loss({"a": R.sum(), "b": R.sum()}, {"a": 0.0, "b": 0.5}), 2.0),
    # (1 - 2)^2 / 2 and (3 - 2)^2 / 2, half of each.
    "values without a clip": (lambda: value_loss(R[0], torch.full((2,), 2.0, dtype=F64)), 0.5),
    "gamma of 0": (lambda: discounted_returns(R, gamma=0.0), [[1.0, 3.0]]),
    "gamma of 1": (lambda: discounted_returns(R, gamma=1.0), [[4.0, 3.0]]),
    # Values 0.5, 1 and 2: 1 + 0.5 * 1 - 0.5 and 3 + 0.5 * 2 - 1; with lambda 1 half of the second is added to the first.
    "lambda of 0": (
        lambda: generalized_advantages(R, torch.tensor([[0.5, 1.0, 2.0]], dtype=F64), gamma=0.5, gae_lambda=0.0)[0],
        [[1.0, 3.0]],
    ),
    "lambda of 1": (
        lambda: generalized_advantages(R, torch.tensor([[0.5, 1.0, 2.0]], dtype=F64), gamma=0.5, gae_lambda=1.0)[0],
        [[2.5, 3.0]],
    ),
    "a penalty of 0": (lambda: apply_failure_rule(R, ~ONE, rule="penalty", penalty=0.0), [[1.0, 3.0]]),
    "failed and paid 0": (lambda: apply_failure_rule(R, ONE, rule="penalty", penalty=0.0), [[0.0, 0.0]]),
    "a KL without weight": (
        lambda: subtract_kl(combine_rewards({"a": R}, {"a": 1.0}), R[..., None], ONE[..., None], weight=0.0).total,
        [[1.0, 3.0]],
    ),
    "a component without weight": (
        lambda: combine_rewards({"a": R, "b": R * math.nan}, {"a": 2.0, "b": 0.0}).total,
        [[2.0, 6.0]],
    ),
    "one choice": (lambda: kept_choices(R, top_k=1), [[False, True]]),
    "all choices": (lambda: kept_choices(R, top_k=2, top_p=1.0), [[True, True]]),
    "more choices than there are": (lambda: kept_choices(R, top_k=9), [[True, True]]),
    "blocks of one row": (
        lambda: chunked_logprobs(R.T, torch.zeros(4, 1, dtype=F64), torch.tensor([0, 3]), chunk_rows=1)[0].exp(),
        [0.25, 0.25],
    ),
    "policy loss alone": (lambda: [*mixing_weights(0.0)], [0.0, 1.0]),
    "supervised loss alone": (lambda: [*mixing_weights(1.0)], [1.0, 0.0]),
    "a run of one step": (lambda: value_at(Schedule(kind="linear", start=2.0, end=5.0), 0, 1), 2.0),
    "the last step": (lambda: value_at(Schedule(kind="cosine", start=2.0, end=0.0), 9, 10), 0.0),
    "the first step after the warm-up": (lambda: value_at(Schedule(start=3.0, warmup_steps=2), 2, 10), 3.0),
    "the first step of the warm-up": (lambda: value_at(Schedule(start=3.0, warmup_steps=2), 0, 10), 1.0),
    "an average of nothing but the policy": (lambda: moved(ReferenceUpdate("ema", decay=0.0), 1), [1.0, 3.0]),
    "a reference at the start": (lambda: moved(ReferenceUpdate("copy", every_steps=1), 0), [0.0, 1.0]),
    "a reference at its step": (lambda: moved(ReferenceUpdate("copy", every_steps=4), 4), [1.0, 3.0]),
    "a buffer of one": (lambda: [ReplayBuffer(1, 1).capacity, ReplayBuffer(1, 1).max_age_steps], [1, 1]),
    "a weight of at most 1": (lambda: importance_weights(R[..., None], 0 * R[..., None], ONE[..., None], cap=1.0), [[1.0, 1.0]]),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_number_at_its_limit_means_what_it_says(name: str) -> None:
    compute, wanted = LIMITS[name]
    found = numbers(compute())
    assert found == wanted or torch.allclose(torch.tensor(found, dtype=F64), torch.tensor(wanted, dtype=F64), atol=1e-12)
