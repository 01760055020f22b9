import math

import pytest
import torch

from grpo_pipeline.core.backprop import terms as terms_of

F64 = torch.float64


def example(seed=0, shape=(3, 5)):
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(shape, dtype=F64, generator=generator) - 2
    new = old + 0.3 * torch.randn(shape, dtype=F64, generator=generator)
    advantages = torch.randn(shape, dtype=F64, generator=generator)
    is_valid = torch.rand(shape, generator=generator) < 0.7
    return new, old, advantages, is_valid


def naive_policy(new, old, advantages, is_valid, *, algorithm, clip):
    total = count = 0.0
    for n, o, a, m in zip(*(x.flatten().tolist() for x in (new, old, advantages, is_valid)), strict=True):
        if m:
            r = math.exp(n - o)
            total += -a * n if algorithm == "reinforce" else -min(r * a, min(max(r, 1 - clip), 1 + clip) * a)
            count += 1
    return total / count


@pytest.mark.parametrize("algorithm", ["reinforce", "grpo"])
@pytest.mark.parametrize("shape", [(12,), (3, 5), (2, 3, 4)])
def test_policy_agrees_with_a_naive_loop(algorithm, shape):
    for seed in range(5):
        new, old, advantages, is_valid = example(seed, shape)
        found = float(terms_of.policy(new, old, advantages, is_valid, algorithm=algorithm, clip=0.1))
        assert found == pytest.approx(naive_policy(new, old, advantages, is_valid, algorithm=algorithm, clip=0.1), abs=1e-12)


def test_one_advantage_per_row_stands_for_all_its_decisions():
    new, old, advantages, is_valid = example()
    short = terms_of.policy(new, old, advantages[:, 0], is_valid, algorithm="grpo")
    assert torch.equal(short, terms_of.policy(new, old, advantages[:, :1].expand(3, 5), is_valid, algorithm="grpo"))


def test_value_leaves_out_padding():
    values = torch.tensor([[1.0, 2.0, math.nan]], dtype=F64, requires_grad=True)
    returns = torch.tensor([[2.0, 5.0, math.nan]], dtype=F64)
    is_valid = torch.tensor([[True, True, False]])
    loss = terms_of.value(values, None, returns, is_valid, clip=None)
    assert float(loss.detach()) == pytest.approx(0.5 * (1**2 + 3**2) / 2)  # 2.5
    loss.backward()
    assert values.grad.tolist() == [[-0.5, -1.5, 0.0]]  # (V - R) / 2


def test_value_is_clipped_around_the_old_one():
    values, old = torch.tensor([3.0], dtype=F64), torch.tensor([1.0], dtype=F64)
    # (3 - 4)^2 = 1; clipped to 1.5: (1.5 - 4)^2 = 6.25, the larger.
    loss = terms_of.value(values, old, torch.tensor([4.0], dtype=F64), torch.tensor([True]), clip=0.5)
    assert float(loss) == pytest.approx(0.5 * 6.25)


def test_one_value_per_row_counts_rows_with_a_valid_decision():
    values, returns = torch.tensor([1.0, 2.0, 9.0], dtype=F64), torch.zeros(3, dtype=F64)
    is_valid = torch.tensor([[True, True], [True, False], [False, False]])
    assert float(terms_of.value(values, None, returns, is_valid, clip=None)) == pytest.approx(0.5 * (1 + 4) / 2)


def test_optional_terms_are_means_over_valid_decisions_and_scalars_pass():
    is_valid = torch.tensor([[True, False], [True, True]])
    x = torch.tensor([[1.0, math.inf], [2.0, 6.0]], dtype=F64)
    found = terms_of.optional(x, x / 2, is_valid)
    assert {name: float(term) for name, term in found.items()} == {"kl": 3.0, "entropy": -1.5}
    assert terms_of.optional(None, None, is_valid) == {}
    scalar = torch.tensor(0.25)
    assert terms_of.optional(scalar, None, is_valid) == {"kl": scalar}


def test_ratio_moments_agree_with_torch():
    new, old, _, is_valid = example()
    ratio = (new - old).exp()[is_valid]
    found = terms_of.ratio_moments(new.masked_fill(~is_valid, math.nan), old, is_valid)
    assert float(found["ratio_mean"]) == pytest.approx(float(ratio.mean()), abs=1e-12)
    assert float(found["ratio_std"]) == pytest.approx(float(ratio.std(unbiased=False)), abs=1e-12)


def test_refuses_shapes_that_do_not_fit():
    new, old, advantages, is_valid = example()
    with pytest.raises(ValueError, match=r"old_log_probs must have shape \[3, 5\], got \[3, 4\]"):
        terms_of.policy(new, old[:, 1:], advantages, is_valid, algorithm="grpo")
    with pytest.raises(ValueError, match=r"advantages must have shape \[3, 5\], or one entry per row, got \[5\]"):
        terms_of.policy(new, old, advantages[0], is_valid, algorithm="grpo")
    with pytest.raises(ValueError, match=r"is_valid must have shape \[3, 5\], got \[3, 4\]"):
        terms_of.valid_decisions(new, is_valid[:, 1:])
    with pytest.raises(ValueError, match=r"kl_div must be a scalar or have shape \[3, 5\], got \[3\]"):
        terms_of.optional(new[:, 0], None, is_valid)
    with pytest.raises(ValueError, match=r"entropy must be a scalar or have shape \[3, 5\], got \[3\]"):
        terms_of.optional(None, new[:, 0], is_valid)
    with pytest.raises(ValueError, match=r"values and returns must have shape \[3, 5\].* got \[3, 6\] and \[3, 5\]; leave out"):
        terms_of.value(torch.zeros(3, 6), None, new, is_valid, clip=None)
    with pytest.raises(ValueError, match="returns must be given with values, got None"):
        terms_of.value(new, None, None, is_valid, clip=None)
    with pytest.raises(ValueError, match="values must be given with returns, got None"):
        terms_of.value(None, None, new, is_valid, clip=None)
