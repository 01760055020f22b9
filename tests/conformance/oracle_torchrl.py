"""torchrl's own code on our cases: estimators of advantages and returns, and the clipped losses."""

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import constants
import torch
from cases import GaeCase, LogitsCase, LossCase
from outcomes import Outcome, with_gradient
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.llm.grpo import CISPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate, reward2go, vec_generalized_advantage_estimate


def gae(case: GaeCase, estimate: Callable[..., tuple[Tensor, Tensor]]) -> Outcome:
    """Return advantages and value targets, stacked; torchrl has time in the last axis but one."""

    def compute(rewards: Tensor) -> Tensor:
        steps = [x.unsqueeze(-1) for x in (case.values[:, :-1], case.values[:, 1:], rewards, case.dones)]
        return torch.stack([x.squeeze(-1) for x in estimate(case.gamma, case.gae_lambda, *steps)])

    return with_gradient(compute, case.rewards, cotangent=case.cotangent)


def returns(case: GaeCase) -> Outcome:
    """Return ``reward2go``."""

    def compute(rewards: Tensor) -> Tensor:
        return reward2go(rewards.unsqueeze(-1), case.dones.unsqueeze(-1), case.gamma).squeeze(-1)

    return with_gradient(compute, case.rewards, cotangent=case.cotangent)


def clipped_loss(case: LogitsCase) -> Outcome:
    """Return ``ClipPPOLoss``'s objective for a linear categorical policy, [B * T] decisions, no critic."""
    head = torch.nn.Linear(case.hidden.shape[-1], case.weight.shape[0], bias=False, dtype=torch.float64)
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(head, in_keys=["hidden"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"], out_keys=["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
        ),
    )
    with torch.no_grad():
        head.weight.copy_(case.weight / case.temperature)
    module = ClipPPOLoss(
        actor, None, clip_epsilon=(constants.CLIP_LOW, constants.CLIP_HIGH), entropy_bonus=False, critic_coeff=None
    ).double()
    hidden = case.hidden.flatten(0, 1).clone().requires_grad_()
    batch = TensorDict(
        {"hidden": hidden, "action": case.actions.flatten(), "advantage": case.cotangent[0].reshape(-1, 1)}, [hidden.shape[0]]
    )
    batch[module.tensor_keys.sample_log_prob] = old_logprobs(case).flatten()
    value = module(batch)["loss_objective"]
    return Outcome(value.detach(), torch.autograd.grad(value, hidden)[0].flatten())


def old_logprobs(case: LogitsCase) -> Tensor:
    """Return log-probabilities of a rollout policy: those of now, up to half a nat off."""
    now = torch.log_softmax(case.hidden @ case.weight.T / case.temperature, -1).gather(-1, case.actions[..., None])[..., 0]
    return now + 0.5 * case.cotangent[1]


def clipped_importance(case: LossCase) -> Outcome:
    """Return the mean of what torchrl's ``CISPOLoss`` gives per decision; there the clipped ratio keeps its gradient."""
    stub = SimpleNamespace(_clip_bounds=(-math.inf, math.log(constants.RATIO_CAP)))

    def compute(logprobs: Tensor) -> Tensor:
        each, _ = CISPOLoss._compute_policy_objective(stub, logprobs - case.old_logprobs, case.advantages[..., None])
        return each.masked_fill(~case.is_valid, 0.0).sum() / case.is_valid.sum().clamp(min=1)

    return with_gradient(compute, case.logprobs)


ORACLES: Mapping[str, Callable[[Any], Outcome]] = {
    "gae": lambda case: gae(case, generalized_advantage_estimate),
    "gae, vectorised": lambda case: gae(case, vec_generalized_advantage_estimate),
    "returns": returns,
    "ppo": clipped_loss,
    "cispo": clipped_importance,
}
