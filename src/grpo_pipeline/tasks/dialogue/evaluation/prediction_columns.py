"""Compute the columns beside a reply and its scores: its ending, and its KL from the start."""

import numpy as np
import torch
from torch import Tensor

from grpo_pipeline.core.policy_gradient.kl import k3
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.dialogue.evaluation.reply_task import ReplyTask
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import has_ended

Columns = dict[str, np.ndarray]
RECALL = "recall_at_1"
"""1 where the first story that a retriever chose is the one that the reply needs; empty where none is needed or chosen."""
MODEL_COLUMNS = ("tokens", "ended", "self_bleu", "reference_nll", "reference_tokens", "kl_start")


def reply_columns(task: ReplyTask, rollouts: Rollouts) -> Columns:
    """Compute ``tokens`` and ``ended`` of each prompt's first reply."""
    ended = has_ended(rollouts, task.ends)[:, 0]
    return {
        "tokens": rollouts.is_valid[:, 0].sum(dim=-1).cpu().numpy(),
        "ended": ended.to(torch.float64).cpu().numpy(),
    }


def kl_per_reply(logprobs: Tensor, start_logprobs: Tensor, is_valid: Tensor) -> Tensor:
    """Compute KL(policy || start) of each prompt in nats per reply, float64 [P].

        kl[p] = mean over g of sum over valid t of k3[p, g, t]

    The replies must be the policy's own samples. k3 of a token is an unbiased estimate of its decision's KL, given the tokens
    before it. The sum is therefore unbiased for the KL of whole replies. Exactly 0 for equal log-probabilities.

    Args:
        logprobs: [P, G, L] of the policy, under the distribution that was sampled.
        start_logprobs: [P, G, L] of the start, over the same choices.
        is_valid: bool [P, G, L].
    """
    estimate = torch.where(is_valid, k3(logprobs.double(), start_logprobs.double()), 0.0)
    return estimate.sum(dim=-1).mean(dim=-1)


def without_model(prompts: int) -> Columns:
    """Build the columns of a rule without a model: NaN."""
    return {name: np.full(prompts, np.nan) for name in MODEL_COLUMNS}
