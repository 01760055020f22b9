"""Run as a script by test_denominators.py, which also imports it: one process of a step that is spread over two.

Usage: ``gloo_worker.py RANK WORLD FOLDER``; leaves the gradients of the step, by how they were reduced, in FOLDER/RANK.pt.
"""

import sys
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from grpo_pipeline.core.policy_gradient.denominators import add, all_reduce_counts, count
from grpo_pipeline.core.policy_gradient.kl import kl_loss
from grpo_pipeline.core.policy_gradient.losses import hybrid_loss, mean_over, policy_loss, value_loss

F64 = torch.float64
P, G, L, V, FEATURES = 7, 3, 9, 5, 4
WEIGHTS = {"policy": 1.0, "kl": 0.3, "entropy": -0.2, "value": 0.5, "supervised": 0.7}
PER_DECISION = {"algorithm": "grpo", "ratio_level": "decision", "reduction": "per_decision"}
# Prompts of each micro-batch of each process: two processes, three micro-batches and one.
SHARES = (((0, 1), (1, 2), (2, 5)), ((5, 7),))


@dataclass(frozen=True)
class Batch:
    """Everything a loss needs, prompt by prompt; ``features`` stands for an encoded input."""

    features: torch.Tensor
    actions: torch.Tensor
    old_logprobs: torch.Tensor
    ref_logprobs: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    targets: torch.Tensor
    is_valid: torch.Tensor

    def __getitem__(self, prompts):
        """Return the prompts of a slice."""
        return Batch(*(getattr(self, field.name)[prompts] for field in fields(self)))


def batch(seed=0):
    """Rows of 0 to L valid decisions: the first prompts have hardly any, the last ones nearly all."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([[1, 0, 1], [0, 0, 0], [2, 1, 1], [9, 8, 9], [3, 9, 1], [9, 9, 9], [9, 9, 8]])
    returns = torch.randn(P, dtype=F64, generator=generator)
    returns[2] = torch.nan
    noise = [0.3 * torch.randn(P, G, L, dtype=F64, generator=generator) for _ in range(2)]
    return Batch(
        features=torch.randn(P, FEATURES, dtype=F64, generator=generator),
        actions=torch.randint(V, (P, G, L), generator=generator),
        old_logprobs=noise[0] - 1.6,
        ref_logprobs=noise[1] - 1.6,
        advantages=torch.randn(P, G, dtype=F64, generator=generator),
        returns=returns,
        targets=torch.randint(V, (P,), generator=generator),
        is_valid=torch.arange(L) < lengths[..., None],
    )


class Policy(nn.Module):
    """Linear logits for each decision, and a value."""

    def __init__(self, seed=1):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.logits = nn.Parameter(torch.randn(FEATURES, L * V, dtype=F64, generator=generator))
        self.value = nn.Parameter(torch.randn(FEATURES, dtype=F64, generator=generator))

    def forward(self, features):
        """Return log-probabilities [P, L, V] and values [P]."""
        return (features @ self.logits).reshape(-1, L, V).log_softmax(-1), features @ self.value


def step_loss(policy, part, denominators, names):
    """Every term of the hybrid loss of one micro-batch, each with the denominator of the step (None = its own)."""
    log_probs, values = policy(part.features)
    logprobs = log_probs[:, None].expand(-1, G, -1, -1).gather(-1, part.actions[..., None])[..., 0]
    over = {term: {"denominator": None if denominators is None else getattr(denominators, term)} for term in WEIGHTS}
    rows, kl = (part.old_logprobs, part.advantages, part.is_valid), {"estimator": "k3", "reduction": names["reduction"]}
    terms = {
        "policy": policy_loss(logprobs, *rows, **names, **over["policy"]),
        "kl": kl_loss(logprobs, part.ref_logprobs, part.is_valid, **kl, **over["kl"]),
        "entropy": mean_over(-(log_probs.exp() * log_probs).sum(-1).mean(-1), **over["entropy"]),
        "value": value_loss(values, part.returns, **over["value"]),
        "supervised": mean_over(-log_probs[:, 0].gather(-1, part.targets[:, None]), **over["supervised"]),
    }
    return hybrid_loss(terms, WEIGHTS)


def count_part(part, names):
    """Count one micro-batch as a training loop would."""
    levels = {"ratio_level": names["ratio_level"], "reduction": names["reduction"]}
    return count(part.is_valid, kl_reduction=names["reduction"], returns=part.returns, **levels)


def gradient(policy):
    """Return the gradient of all parameters as one vector."""
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


def shared_gradient(rank, how, names):
    """Take this process's part of a step; ``how`` the processes' gradients become one: "sum" or "mean"."""
    whole, policy = batch(), Policy()
    parts = [whole[slice(*share)] for share in SHARES[rank]]
    denominators = all_reduce_counts(add(*(count_part(part, names) for part in parts)), gradient_reduction=how)
    model = nn.parallel.DistributedDataParallel(policy) if how == "mean" else policy
    for i, part in enumerate(parts):
        wait = how == "mean" and i < len(parts) - 1
        with model.no_sync() if wait else nullcontext():
            step_loss(model, part, denominators, names).backward()
    if how == "sum":
        for parameter in policy.parameters():
            dist.all_reduce(parameter.grad)
    return gradient(policy)


def main(rank, world, folder):
    """Join the group through a file, so that no port is taken."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=(folder / "group").as_uri(), rank=rank, world_size=world)
    try:
        torch.save({how: shared_gradient(rank, how, PER_DECISION) for how in ("sum", "mean")}, folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
