"""The core learns from reward on a toy whose gradient and best policy are known: a sum over all ordered sets.

Four prompts of twelve cells, three of which are the prompt's own; a sample takes three cells, and hits with two good ones. Each
prompt pays an amount of its own beside the hit, which a baseline of the prompt takes away and one of the whole batch does not.
"""

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from surrogates import surrogate
from torch import Tensor, nn

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.sampling.plackett_luce import categorical_entropy, gumbel_top_k, plackett_luce_logprobs
from grpo_pipeline.core.training.optim import apply_update, build_optimizer
from grpo_pipeline.core.training.state import TrainState

PROMPTS, CELLS, PICKS, GROUP = 4, 12, 3, 4
SETS = torch.tensor(list(permutations(range(CELLS), PICKS)))  # [1320, 3]
F64 = torch.float64


class Table(nn.Module):
    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())


def shuffled(seed: int, spread: float = 1.0) -> Tensor:
    """Logits [P, V] of one row, moved on by three cells for each prompt like its good cells: all prompts have one hit rate."""
    row = torch.linspace(-spread, spread, CELLS, dtype=F64)[torch.randperm(CELLS, generator=torch.Generator().manual_seed(seed))]
    return torch.stack([row.roll(3 * p) for p in range(PROMPTS)])


def hits(sets: Tensor, prompt: Tensor) -> Tensor:
    return ((sets // 3 == prompt[..., None]).sum(-1) >= 2).double()


def by_hand(logits: Tensor) -> Tensor:
    """Probabilities [P, 1320] of all ordered sets: each cell among those that are left."""
    odds, left = logits.exp()[:, SETS], logits.exp().sum(1)[:, None]  # [P, 1320, 3], [P, 1]
    taken = torch.cat([torch.zeros_like(odds[..., :1]), odds.cumsum(-1)[..., :-1]], dim=-1)
    return (odds / (left[..., None] - taken)).prod(-1)


def hit_rate(logits: Tensor) -> Tensor:
    return (by_hand(logits) * hits(SETS, torch.arange(PROMPTS)[:, None])).sum(1).mean()


def loss_of(policy: Table, algorithm: str, generator: torch.Generator, *, copies: int = 1) -> Callable[[], Tensor]:
    """Draw groups, pay them, and return the loss under the weights of whenever it is called."""
    prompts = torch.arange(PROMPTS).repeat(copies)
    allowed = torch.ones(len(prompts), CELLS, dtype=torch.bool)
    with torch.no_grad():
        actions = gumbel_top_k(policy.logits[prompts], PICKS, GROUP, generator=generator, is_allowed=allowed)  # [P, G, 3]
        old = plackett_luce_logprobs(policy.logits[prompts], actions, is_allowed=allowed)
    torch.testing.assert_close(old.sum(-1), exact(policy.logits.detach(), actions, prompts))
    pay = hits(actions, prompts[:, None]) + 10.0 * prompts[:, None]  # [P, G]
    advantages, is_valid = compute_advantages(pay).values, torch.ones_like(actions, dtype=torch.bool)

    def loss() -> Tensor:
        logprobs = plackett_luce_logprobs(policy.logits[prompts], actions, is_allowed=allowed)
        return policy_loss(logprobs, old, advantages, is_valid, surrogate(algorithm))

    return loss


def exact(logits: Tensor, actions: Tensor, prompts: Tensor) -> Tensor:
    number = {tuple(one): i for i, one in enumerate(SETS.tolist())}
    where = torch.tensor([[number[tuple(one)] for one in group] for group in actions.tolist()])
    return by_hand(logits)[prompts].gather(1, where).log()


@pytest.mark.parametrize("algorithm", ["grpo", "reinforce"])
@pytest.mark.parametrize("seed", range(2))
def test_the_gradient_of_samples_is_that_of_all_sets(algorithm: str, seed: int) -> None:
    policy, leaf = Table(shuffled(seed)), shuffled(seed).requires_grad_()
    loss_of(policy, algorithm, torch.Generator().manual_seed(seed), copies=2048)().backward()
    expected = torch.autograd.grad(hit_rate(leaf), leaf)[0]
    assert float(torch.cosine_similarity(-policy.logits.grad.flatten(), expected.flatten(), dim=0)) > 0.98


@pytest.mark.parametrize(("algorithm", "epochs"), [("grpo", 4), ("reinforce", 1)])
def test_a_uniform_policy_finds_the_good_cells(algorithm: str, epochs: int) -> None:
    policy, generator = Table(torch.zeros(PROMPTS, CELLS, dtype=F64)), torch.Generator().manual_seed(0)
    state = TrainState(policy, build_optimizer({"policy": ([policy.logits], 0.1)}), None, 0, 0, 0)
    assert float(hit_rate(policy.logits.detach())) == pytest.approx((3 * 9 + 1) / 220, abs=1e-12)
    for _ in range(60):
        loss = loss_of(policy, algorithm, generator, copies=2)
        for _ in range(epochs):
            state, _ = apply_update(state, loss(), max_grad_norm=1.0)
    assert float(hit_rate(policy.logits.detach())) > 0.9


def test_a_bonus_raises_the_entropy_by_plain_steps() -> None:
    policy = Table(shuffled(0, spread=6.0))
    state, allowed = (
        TrainState(policy, torch.optim.SGD([policy.logits], lr=8.0), None, 0, 0, 0),
        torch.ones(PROMPTS, CELLS).bool(),
    )
    before = float(categorical_entropy(policy.logits.detach(), allowed).mean())
    for _ in range(100):
        state, _ = apply_update(state, -categorical_entropy(policy.logits, allowed).mean(), max_grad_norm=None)
    assert float(categorical_entropy(policy.logits.detach(), allowed).mean()) > before + 0.5
