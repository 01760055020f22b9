import copy

import pytest
import torch
from refusals import refuses
from torch import nn

from grpo_pipeline.core.storage.weights import save_weights, weights_of
from grpo_pipeline.core.training.reference import (
    ReferenceUpdate,
    check_not_optimised,
    frozen_copy,
    load_reference,
    update_reference,
)


class Net(nn.Module):
    """One of each: a trained weight, a frozen one, and floating-point, integer and constant -inf buffers."""

    def __init__(self, seed=0, dtype=torch.float64):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.trained = nn.Parameter(torch.randn(3, generator=generator, dtype=dtype))
        self.fixed = nn.Parameter(torch.linspace(0.1, 3, 50, dtype=dtype), requires_grad=False)
        self.register_buffer("average", torch.randn(2, generator=generator, dtype=dtype))
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf], dtype=dtype), persistent=False)


def values(module):
    return {name: t.tolist() for name, t in [*module.named_parameters(), *module.named_buffers()]}


@pytest.mark.parametrize("method", ["copy", "ema"])
def test_a_reference_is_frozen_in_evaluation_mode_and_apart_also_after_an_update(method):
    policy = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)).train()
    policy[0].bias.requires_grad_(False)
    policy(torch.randn(4, 3, generator=torch.Generator().manual_seed(0))).sum().backward()
    reference = frozen_copy(policy)
    for _ in range(2):
        assert policy.training
        assert [p.requires_grad for p in policy.parameters()] == [True, False, True, True]
        assert not any(module.training for module in reference.modules())
        assert [(p.requires_grad, p.grad_fn, p.grad) for p in reference.parameters()] == [(False, None, None)] * 4
        before = copy.deepcopy(reference.state_dict())
        with torch.no_grad():
            for name, tensor in policy.state_dict().items():
                tensor.add_(0 if name == "0.bias" else 1)  # frozen: nothing moves it, so that the reference need not own it
        assert [p is q for p, q in zip(policy.parameters(), reference.parameters(), strict=True)] == [False, True, False, False]
        assert all(torch.equal(before[name], tensor) for name, tensor in reference.state_dict().items())
        update_reference(reference, policy, ReferenceUpdate(method), 1)


def test_copy_takes_every_tensor_at_every_nth_step_and_a_frozen_reference_stays():
    policy, reference, kept = Net(1, torch.float32), frozen_copy(Net(2)), frozen_copy(Net(2))  # dtypes may differ
    contents, seen = [values(reference)], []
    for step in range(7):
        with torch.no_grad():
            policy.trained.add_(1.0)
        seen.append(update_reference(reference, policy, ReferenceUpdate("copy", every_steps=3), step))
        contents.append(values(policy) if seen[-1] else contents[-1])
        assert values(reference) == contents[-1]
        assert not update_reference(kept, policy, ReferenceUpdate("frozen"), step)
    assert seen == [False, False, False, True, False, False, True]
    assert values(kept) == contents[0]


def test_ema_is_the_geometric_sum_of_the_policies():
    decay, steps = 0.9, 7
    start, policy = Net(0), Net(0, torch.float32)  # dtypes may differ
    reference = frozen_copy(start)
    # ref_n = d^n * start + (1 - d) * sum over i of d^(n - i) * policy_i
    trained, average = decay**steps * start.trained.detach(), decay**steps * start.average
    for i in range(1, steps + 1):
        policy.load_state_dict(Net(i).state_dict())
        assert update_reference(reference, policy, ReferenceUpdate("ema", decay=decay), i)
        trained = trained + (1 - decay) * decay ** (steps - i) * policy.trained.detach().double()
        average = average + (1 - decay) * decay ** (steps - i) * policy.average.double()
    torch.testing.assert_close(reference.trained, nn.Parameter(trained, requires_grad=False), rtol=0, atol=1e-14)
    torch.testing.assert_close(reference.average, average, rtol=0, atol=1e-14)
    assert reference.count == steps  # an integer is copied, not averaged


def test_ema_keeps_equal_constants_bit_identical_and_moves_a_tied_weight_once():
    policy = Net(0, torch.float32)
    reference = frozen_copy(policy)
    fixed = reference.fixed.clone()
    for step in range(1, 200):
        update_reference(reference, policy, ReferenceUpdate("ema", decay=0.937), step)
    assert torch.equal(reference.fixed, fixed)
    assert reference.mask.tolist() == [0.0, -torch.inf]
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
    tied[1].weight = tied[0].weight
    reference = frozen_copy(tied)
    start = reference[0].weight.clone()
    with torch.no_grad():
        tied[0].weight += 1.0
    update_reference(reference, tied, ReferenceUpdate("ema", decay=0.75), 1)
    torch.testing.assert_close(reference[0].weight - start, torch.full((2, 2), 0.25, dtype=torch.float64), rtol=0, atol=1e-15)
    assert reference[1].weight is reference[0].weight


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([(3, 5), (4, 1)], r"got '0.bias' of shape \[5\] instead of \[4\], '0.weight' of shape"),
        ([(3, 4)], "got no '1.bias', no '1.weight'; build"),
        ([(3, 4), (4, 1), (1, 1), (1, 1)], "got an unknown '2.bias', an unknown '2.weight', an unknown '3.bias' and 1 more"),
    ],
)
def test_a_policy_that_does_not_fit_or_shares_memory_is_refused_by_name(sizes, message):
    reference = frozen_copy(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)))
    before = copy.deepcopy(reference.state_dict())
    with pytest.raises(ValueError, match=f"the policy must fit its reference, {message}"):
        update_reference(reference, nn.Sequential(*(nn.Linear(*size) for size in sizes)), ReferenceUpdate("copy"), 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in reference.state_dict().items())
    policy = Net()
    for shared in (policy, copy.copy(policy)):
        with pytest.raises(ValueError, match="must own its memory, got 'trained', 'average', 'count' and 1 more shared"):
            update_reference(shared, policy, ReferenceUpdate("ema"), 1)


test_a_rule_that_makes_no_sense_is_refused = refuses(
    ({"method": "polyak"}, "method must be one of frozen, copy, ema, got 'polyak'"),
    ({"method": "copy", "every_steps": 0}, "every_steps must be at least 1, got 0"),
    *(({"method": "ema", "decay": x}, f"decay must be at least 0 and below 1, got {x}") for x in (1.0, -0.1, float("nan"))),
    by=ReferenceUpdate,
)


def test_load_reference_gives_a_frozen_copy_with_the_stored_weights_if_they_fit(tmp_path):
    trained, policy = (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).train() for _ in range(2))
    trained(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    save_weights(tmp_path / "w", weights_of(trained, {"width": 2}))
    policy[0].bias.requires_grad_(False)  # not shared here: the weights of the folder would overwrite it
    before = copy.deepcopy(policy.state_dict())
    reference = load_reference(tmp_path / "w", policy)
    assert all(torch.equal(t, reference.state_dict()[name]) for name, t in trained.state_dict().items())
    assert all(torch.equal(t, policy.state_dict()[name]) for name, t in before.items())
    assert not any(p.requires_grad for p in reference.parameters())
    assert (policy.training, reference.training) == (True, False)
    with pytest.raises(FileNotFoundError, match="weights .*nowhere must exist, got nothing there"):
        load_reference(tmp_path / "nowhere", policy)
    save_weights(tmp_path / "w", weights_of(nn.Linear(3, 4), {}))
    for other, got in [(nn.Linear(3, 2), r"'bias' of shape \[4\] instead of \[2\], 'weight' of shape"),
                       (Net(), "no 'average', an unknown 'bias', no 'count' and 3 more; build")]:  # fmt: skip
        with pytest.raises(ValueError, match=f"w must fit the policy, got {got}"):
            load_reference(tmp_path / "w", other)


def test_an_optimised_reference_is_refused():
    policy = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    reference = frozen_copy(policy)
    optimizer, view = torch.optim.SGD(policy.parameters(), lr=0.1), nn.Parameter(reference[1].bias.detach().view(2, 1))
    both = torch.optim.SGD([{"params": [reference[1].bias]}, {"params": policy.parameters()}], lr=0.1)
    check_not_optimised(optimizer, reference)
    for held, module, got in [
        (optimizer, policy, "'0.weight', '0.bias', '1.weight' and 1 more in"),
        (both, reference, "'1.bias' in the optimiser"),
        (torch.optim.SGD([view], lr=0.1), reference, "'1.bias' in the optimiser"),
    ]:
        with pytest.raises(ValueError, match=f"must not be optimised, got {got}"):
            check_not_optimised(held, module)
    reference[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match="must not require gradients, got '0.weight' that does"):
        check_not_optimised(optimizer, reference)
