import torch
from torch import nn

from grpo_pipeline.core.optim import apply_update, build_optimizer
from grpo_pipeline.core.reference import frozen_copy
from grpo_pipeline.core.types import TrainState


def test_reference_does_not_move_with_the_policy():
    policy = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    policy(torch.ones(1, 3)).sum().backward()
    reference = frozen_copy(policy)
    before = [p.clone() for p in reference.parameters()]
    state = TrainState(policy, build_optimizer({"all": (list(policy.parameters()), 0.1)}), reference, 0, 0, 0)
    apply_update(state, policy(torch.ones(2, 3)).sum(), max_grad_norm=None)
    assert all(torch.equal(a, b) for a, b in zip(before, reference.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_reference_is_in_evaluation_mode_and_takes_no_gradient():
    policy = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).train()
    policy(torch.ones(1, 3)).sum().backward()
    reference = frozen_copy(policy)
    assert policy.training
    assert not any(module.training for module in reference.modules())
    assert [(p.requires_grad, p.grad) for p in reference.parameters()] == [(False, None)] * 2
    x = torch.ones(1, 3)
    assert torch.equal(reference(x), reference(x))
