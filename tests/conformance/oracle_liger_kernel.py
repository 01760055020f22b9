"""Liger Kernel's GRPO loss on our cases: its per-chunk loss in float64, and the fused linear layer that calls it, in float32."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import constants
import torch
from cases import LogitsCase, LossCase
from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOFunction, LigerFusedLinearGRPOLoss
from outcomes import Outcome, with_gradient
from torch import Tensor


def loss(
    case: LossCase,
    *,
    loss_type: str,
    level: str = "token",
    beta: float = 0.0,
    corrected: bool = False,
    delta: float | None = None,
    num_items: float | None = None,
) -> Outcome:
    """Return ``ppo_loss_fn``, which is plain torch, and its gradient with respect to the log-probabilities."""
    mask = case.is_valid.flatten(0, 1).long()

    def compute(logprobs: Tensor) -> Tensor:
        value, _ = LigerFusedLinearGRPOFunction.ppo_loss_fn(
            logprobs.flatten(0, 1),
            mask,
            case.advantages.flatten(),
            mask,
            ref_per_token_logps=case.ref_logprobs.flatten(0, 1),
            old_per_token_logps=case.old_logprobs.flatten(0, 1),
            epsilon_low=constants.CLIP_LOW,
            epsilon_high=constants.RATIO_CAP if loss_type == "cispo" else constants.CLIP_HIGH,
            beta=beta,
            loss_type=loss_type,
            max_completion_length=case.logprobs.shape[2] + constants.EXTRA_LENGTH,
            importance_sampling_level=level,
            sapo_temperature_pos=constants.TAU_POSITIVE,
            sapo_temperature_neg=constants.TAU_NEGATIVE,
            delta=delta,
            use_bias_correction_kl=corrected,
            num_items_in_batch=num_items,
        )
        return value

    return with_gradient(compute, case.logprobs)


def fused_loss(case: LogitsCase) -> Outcome:
    """Return the dapo loss of the fused linear layer, on-policy, with the first cotangent as advantages of the rows.

    The layer works in float32 whatever it is given; so does its gradient with respect to hidden states and weights.
    """
    module = LigerFusedLinearGRPOLoss(beta=0.0, compiled=False, use_ref_model=False, temperature=case.temperature)

    def compute(hidden: Tensor, weight: Tensor) -> Tensor:
        value, _ = module(hidden, weight, case.actions, torch.ones_like(case.actions), case.cotangent[0, :, 0].float())
        return value

    found = with_gradient(compute, case.hidden.float(), case.weight.float())
    return Outcome(found.value.double(), None if found.gradient is None else found.gradient.double())


ORACLES: Mapping[str, Callable[[Any], Outcome]] = {
    "grpo": partial(loss, loss_type="grpo"),
    "bnpo": partial(loss, loss_type="bnpo"),
    "dr_grpo": partial(loss, loss_type="dr_grpo"),
    "dapo": partial(loss, loss_type="dapo"),
    "dapo, part of a step": partial(loss, loss_type="dapo", num_items=constants.STEP_DENOMINATOR),
    "grpo, delta": partial(loss, loss_type="grpo", delta=constants.DELTA),
    "cispo": partial(loss, loss_type="cispo"),
    "sapo": partial(loss, loss_type="sapo"),
    "gspo": partial(loss, loss_type="grpo", level="sequence"),
    "gspo, per decision": partial(loss, loss_type="dapo", level="sequence"),
    "grpo + k3": partial(loss, loss_type="grpo", beta=constants.KL_WEIGHT),
    "grpo + ratio_k3": partial(loss, loss_type="grpo", beta=constants.KL_WEIGHT, corrected=True),
    "dapo + ratio_k3": partial(loss, loss_type="dapo", beta=constants.KL_WEIGHT, corrected=True),
    "gspo + ratio_k3": partial(loss, loss_type="grpo", level="sequence", beta=constants.KL_WEIGHT, corrected=True),
    "luspo": partial(loss, loss_type="luspo"),
    "luspo, sequence level": partial(loss, loss_type="luspo", level="sequence"),
    "fused head": fused_loss,
}
