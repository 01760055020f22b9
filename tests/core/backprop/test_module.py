"""The facade against naive loops, and the usage patterns of docs/backprop.md as they stand there."""

import copy
import inspect
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from grpo_pipeline.core.backprop import BackpropConfig, BackpropModule, compute_entropy, compute_returns
from grpo_pipeline.core.backprop.terms import response_logprobs

F64 = torch.float64
ROOT = Path(__file__).resolve().parents[3]


class TableModel(nn.Module):
    """The distribution of the next token depends on the last one."""

    def __init__(self, v=5, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(torch.randn(v, v, dtype=F64, generator=generator))

    def forward(self, ids, attention_mask=None):
        return self.table[ids]


def build(model=None, *, lr=0.1, value_model=None, **settings):
    model = model or TableModel()
    parameters = [*model.parameters(), *(value_model.parameters() if value_model else ())]
    return BackpropModule(model, torch.optim.SGD(parameters, lr=lr), BackpropConfig(**settings), value_model)


def tensors(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=F64, generator=generator) for shape in shapes]


def test_everything_trainable_must_be_in_the_optimiser():
    model, value_model = TableModel(), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"parameter of value_model must be in the optimiser, got 2 .*first 'weight'; add"):
        BackpropModule(model, optimizer, BackpropConfig(), value_model)
    with pytest.raises(ValueError, match=r"parameter of model must be in the optimiser, got 1 .*first 'table'"):
        BackpropModule(TableModel(), optimizer, BackpropConfig())
    assert BackpropModule(model, optimizer, BackpropConfig(), value_model.requires_grad_(False)).value_model is value_model


def test_the_reference_is_frozen_and_never_optimised():
    module = build()
    held = {id(p) for group in module.optimizer.param_groups for p in group["params"]}
    (table,) = module.ref_model.parameters()
    assert id(table) not in held
    assert not table.requires_grad
    before = table.clone()
    for _ in range(3):
        module.update(module.model.table.square().sum())
    assert torch.equal(table, before)
    assert not torch.equal(module.model.table, before)


HALF = {"gamma": 0.5, "lam": 0.5}


@pytest.mark.parametrize(
    ("compute", "values", "dones", "names", "wanted"),
    [
        # t = 2: 4 + 0.5 * 8 - 3 = 5 (bootstrap);  t = 1: 2 - 1 = 1 (done);  t = 0: (1 + 0.5 * 1 - 0.5) + 0.25 * 1 = 1.25
        ("advantages", [0.5, 1.0, 3.0, 8.0], [0, 1, 0], HALF, [1.25, 1.0, 5.0]),
        ("advantages", [0.5, 1.0, 3.0, 8.0], [0, 1, 1], HALF, [1.25, 1.0, 1.0]),
        # Without values discounted: 4; 2 + 0.5 * 4 = 4; 1 + 0.5 * 4 = 3, or 1 where the episode ended.
        ("advantages", None, None, {"gamma": 0.5}, [3.0, 4.0, 4.0]),
        ("advantages", None, [1, 0, 0], {"gamma": 0.5, "lam": 0.1}, [1.0, 4.0, 4.0]),
        # 4 + 0.5 * 8 = 8;  2 + 0.5 * 8 = 6;  1 + 0.5 * 6 = 4: the last value alone counts at lambda 1
        ("returns", [50.0, 60.0, 70.0, 8.0], None, {"gamma": 0.5}, [4.0, 6.0, 8.0]),
        ("returns", [50.0, 60.0, 70.0, 8.0], [0, 1, 1], {"gamma": 0.5}, [2.0, 2.0, 4.0]),
        ("returns", None, None, {"gamma": 0.5}, [3.0, 4.0, 4.0]),
        # 8;  2 + 0.5 * (3 + 8) / 2 = 4.75;  1 + 0.5 * (1 + 4.75) / 2 = 2.4375
        ("returns", [0.5, 1.0, 3.0, 8.0], None, HALF, [2.4375, 4.75, 8.0]),
    ],
)
def test_golden_advantages_and_returns(compute, values, dones, names, wanted):
    function = compute_returns if compute == "returns" else build(normalize_advantages=False).compute_advantages
    rewards = torch.tensor([[1.0, 2.0, 4.0]], dtype=F64)
    values = None if values is None else torch.tensor([values], dtype=F64)
    found = function(rewards, values, None if dones is None else torch.tensor([dones]).bool(), **names)
    assert found.tolist() == [wanted]


def test_gamma_and_lambda_come_from_the_config():
    rewards, values = tensors((2, 4), (2, 5))
    module = build(normalize_advantages=False, gamma=0.7, gae_lambda=0.3)
    assert torch.equal(module.compute_advantages(rewards, values), module.compute_advantages(rewards, values, None, 0.7, 0.3))
    assert not torch.equal(module.compute_advantages(rewards, values), module.compute_advantages(rewards, values, None, 0.7, 0.4))


@pytest.mark.parametrize("scope", ["batch", "row"])
def test_whitening_is_masked_and_within_its_scope(scope):
    rewards, values = tensors((3, 6), (3, 7))
    is_valid = torch.arange(6) < torch.tensor([[6], [2], [4]])
    padded_rewards, padded_values = rewards.clone(), values.clone()
    padded_rewards[~is_valid] = math.nan
    padded_values[:, :6][~is_valid] = math.nan
    raw = build(normalize_advantages=False).compute_advantages(padded_rewards, padded_values, is_valid=is_valid)
    found = build().compute_advantages(padded_rewards, padded_values, is_valid=is_valid, scope=scope)
    assert found[~is_valid].tolist() == [0.0] * int((~is_valid).sum())
    for rows in [slice(None)] if scope == "batch" else [0, 1, 2]:
        kept, before = found[rows][is_valid[rows]], raw[rows][is_valid[rows]]
        assert float(kept.mean()) == pytest.approx(0.0, abs=1e-12)
        assert float(kept.std(unbiased=True)) == pytest.approx(1.0, abs=1e-6)
        slope = (kept[1:] - kept[:1]) / (before[1:] - before[:1])
        assert torch.allclose(slope, slope[:1].expand_as(slope))
        assert float(slope[0]) > 0


def test_advantages_carry_no_gradient():
    rewards, values = tensors((2, 4), (2, 5))
    assert not build().compute_advantages(rewards.requires_grad_(), values.requires_grad_()).requires_grad
    assert not compute_returns(rewards, values).requires_grad


def test_relative_advantages_are_normalised_or_centred_as_the_config_says():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 3.0, 3.0, 3.0]], dtype=F64)
    scale = 0.5 / (math.sqrt(4 * 0.25 / 3) + 1e-4)
    assert build().compute_relative_advantages(rewards)[0].tolist() == pytest.approx([scale, -scale, -scale, scale], abs=1e-12)
    centred = build(normalize_advantages=False)
    assert centred.compute_relative_advantages(rewards).tolist() == [[0.5, -0.5, -0.5, 0.5], [0.0] * 4]
    # leave one out: 1 - (0 + 0 + 1) / 3 and 0 - (1 + 0 + 1) / 3
    loo = centred.compute_relative_advantages(rewards, method="leave_one_out")[0].tolist()
    assert loo == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3], abs=1e-12)
    # Rows of groups, and groups.
    relative = build().compute_relative_advantages
    assert torch.equal(relative(rewards.flatten(), 4), relative(rewards).flatten())
    assert torch.equal(relative(rewards, 4), relative(rewards))


def drifted(seed=1):
    """A module whose model has moved away from its reference."""
    module = build()
    with torch.no_grad():
        module.model.table += 0.5 * tensors((5, 5), seed=seed)[0]
    return module


def test_kl_is_the_masked_mean_of_k3():
    module = drifted()
    prompts, responses = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[4, 0, 2], [1, 1, 3]])
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 0, 0]])
    policy, reference = (m.table.log_softmax(dim=-1).tolist() for m in (module.model, module.ref_model))
    terms = []
    # (token before, token): the pairs whose second token is real and belongs to a response.
    for before, token in [(1, 4), (4, 0), (3, 1)]:
        difference = reference[before][token] - policy[before][token]
        terms.append(math.exp(difference) - difference - 1)
    assert float(module.compute_kl(prompts, responses, mask).detach()) == pytest.approx(sum(terms) / 3, abs=1e-12)
    assert float(module.compute_kl(prompts, responses, mask.bool()).detach()) == pytest.approx(sum(terms) / 3, abs=1e-12)


def test_the_gradient_of_kl_reaches_the_model_and_not_the_reference():
    module = drifted()
    prompts, responses = torch.tensor([[0], [2]]), torch.tensor([[4, 0], [1, 1]])
    module.ref_model.requires_grad_(True)
    module.compute_kl(prompts, responses).backward()
    assert module.ref_model.table.grad is None
    gradient, step = module.model.table.grad[4, 0], 1e-6
    with torch.no_grad():
        module.model.table[4, 0] += step
        above = module.compute_kl(prompts, responses)
        module.model.table[4, 0] -= 2 * step
        below = module.compute_kl(prompts, responses)
    assert float(gradient) == pytest.approx(float((above - below) / (2 * step)), rel=1e-6)
    assert float(gradient) != 0.0


def test_loss_agrees_with_a_naive_loop():
    module = build(kl_coef=0.3, entropy_coef=0.2)
    lp, a, kl, h = tensors((3, 4), (3, 4), (3, 4), (3, 4))
    is_valid = torch.arange(4) < torch.tensor([[4], [1], [3]])
    rows = list(zip(*(x.flatten().tolist() for x in (lp, a, kl, h, is_valid)), strict=True))
    per_decision = [-a * lp + 0.3 * kl - 0.2 * h for lp, a, kl, h, m in rows if m]
    assert float(module.compute_loss(lp, a, kl, h, is_valid=is_valid)["total_loss"]) == pytest.approx(
        sum(per_decision) / 8, abs=1e-12
    )
    weighted = [-a * lp + 0.7 * kl for lp, a, kl, _, m in rows if m]
    losses = module.compute_loss(lp, a, kl, kl_weight=0.7, is_valid=is_valid.long())
    assert list(losses) == ["total_loss", "policy_loss", "entropy_loss", "kl_loss"]
    assert float(losses["entropy_loss"]) == 0.0
    assert float(losses["total_loss"]) == pytest.approx(sum(weighted) / 8, abs=1e-12)


def ppo_example(seed=0):
    new, noise, advantages, values, drift, returns, entropy, kl = tensors(*[(3, 4)] * 8, seed=seed)
    is_valid = torch.arange(4) < torch.tensor([[4], [1], [3]])
    inputs = {
        "current_log_probs": new,
        "old_log_probs": new + 0.3 * noise,
        "advantages": advantages,
        "values": values,
        "old_values": values + 0.5 * drift,
        "returns": returns,
        "entropy": entropy,
        "kl_div": kl.abs(),
    }
    return inputs, is_valid


def naive_ppo(inputs, is_valid, *, clip, clip_value):
    sums, ratios = dict.fromkeys(("policy", "value", "entropy", "kl"), 0.0), []
    columns = [x.flatten().tolist() for x in inputs.values()]
    for lp, o, a, v, w, target, h, kl in (
        row for row, m in zip(zip(*columns, strict=True), is_valid.flatten().tolist(), strict=True) if m
    ):
        r = math.exp(lp - o)
        ratios.append(r)
        sums["policy"] -= min(r * a, min(max(r, 1 - clip), 1 + clip) * a)
        error = (v - target) ** 2
        if clip_value:
            error = max(error, (w + min(max(v - w, -clip), clip) - target) ** 2)
        sums["value"] += 0.5 * error
        sums["entropy"] -= h
        sums["kl"] += kl
    n, mean = len(ratios), sum(ratios) / len(ratios)
    found = {f"{name}_loss": total / n for name, total in sums.items()}
    found["total_loss"] = found["policy_loss"] + 0.5 * found["value_loss"] + 0.25 * found["entropy_loss"] + 0.3 * found["kl_loss"]
    return found | {"ratio_mean": mean, "ratio_std": math.sqrt(sum((r - mean) ** 2 for r in ratios) / n)}


@pytest.mark.parametrize("clip_value", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_ppo_loss_agrees_with_a_naive_loop(seed, clip_value):
    module = build(value_loss_coef=0.5, entropy_coef=0.25, kl_coef=0.3, ppo_clip_range=0.1, clip_value_loss=clip_value)
    inputs, is_valid = ppo_example(seed)
    found = module.compute_ppo_loss(**inputs, is_valid=is_valid)
    expected = naive_ppo(inputs, is_valid, clip=0.1, clip_value=clip_value)
    assert found.keys() == expected.keys()
    assert {name: float(x) for name, x in found.items()} == pytest.approx(expected, abs=1e-12)
    # A weight of the call takes the place of the coefficient.
    heavy = float(module.compute_ppo_loss(**inputs, is_valid=is_valid, kl_weight=0.8)["total_loss"])
    assert heavy - expected["total_loss"] == pytest.approx(0.5 * expected["kl_loss"], abs=1e-12)


def test_ppo_padding_reaches_neither_loss_nor_gradient():
    module = build()
    inputs, is_valid = ppo_example()
    clean = float(module.compute_ppo_loss(**inputs, is_valid=is_valid)["total_loss"])
    dirty = {name: x.masked_fill(~is_valid, math.nan).requires_grad_() for name, x in inputs.items()}
    total = module.compute_ppo_loss(**dirty, is_valid=is_valid)["total_loss"]
    assert float(total.detach()) == pytest.approx(clean, abs=1e-12)
    total.backward()
    for name in ("current_log_probs", "values", "entropy", "kl_div"):
        assert dirty[name].grad.isfinite().all()
        assert dirty[name].grad[~is_valid].abs().sum() == 0
        assert dirty[name].grad[is_valid].abs().sum() > 0
    assert {name for name, x in dirty.items() if x.grad is None} == {"old_log_probs", "advantages", "old_values", "returns"}


def test_absent_ppo_terms_are_zero_and_only_the_total_has_a_gradient():
    module = build()
    inputs, _ = ppo_example()
    lp = inputs["current_log_probs"].requires_grad_()
    found = module.compute_ppo_loss(lp, inputs["old_log_probs"], inputs["advantages"])
    assert [float(found[name]) for name in ("value_loss", "entropy_loss", "kl_loss")] == [0.0, 0.0, 0.0]
    assert float(found["total_loss"].detach()) == float(found["policy_loss"])
    assert {name for name, x in found.items() if x.requires_grad} == {"total_loss"}
    first = module.compute_ppo_loss(lp, lp.detach(), inputs["advantages"])
    assert (float(first["ratio_mean"]), float(first["ratio_std"])) == (1.0, 0.0)


def test_update_is_one_clipped_gradient_step():
    module = build(lr=1.0, max_grad_norm=0.5)
    twin = copy.deepcopy(module.model)
    loss = twin.table.square().sum()
    loss.backward()
    norm = float(twin.table.grad.norm())
    report = module.update(module.model.table.square().sum())
    assert report == pytest.approx({"grad_norm": norm, "loss": float(loss.detach())}, abs=1e-12)
    assert norm > 0.5
    assert torch.allclose(module.model.table, twin.table - 0.5 * twin.table.grad / norm, rtol=0, atol=1e-6)
    unclipped = build(lr=1.0, max_grad_norm=None)
    unclipped.update(unclipped.model.table.square().sum())
    assert torch.allclose(unclipped.model.table, twin.table - twin.table.grad, rtol=0, atol=1e-12)


def test_update_forgets_the_gradient_before_it_and_refuses_pending_ones():
    module = build(lr=0.0)
    first = module.update(module.model.table.square().sum())
    assert module.update(module.model.table.square().sum()) == first
    module.accumulate(module.model.table.square().sum())
    with pytest.raises(ValueError, match=r"accumulated gradients must be used before an update, got some pending"):
        module.update(module.model.table.sum())
    assert module.step() == first


def test_update_ref_model_copies_or_averages():
    module = build(ema_alpha=0.75)
    old, new = module.ref_model.table.clone(), tensors((5, 5), seed=9)[0]
    with torch.no_grad():
        module.model.table.copy_(new)
    module.update_ref_model("ema")
    assert torch.allclose(module.ref_model.table, 0.75 * old + 0.25 * new, rtol=0, atol=1e-12)
    module.update_ref_model("ema", alpha=0.0)
    assert torch.allclose(module.ref_model.table, new, rtol=0, atol=1e-12)
    with torch.no_grad():
        module.model.table.add_(1.0)
    module.update_ref_model()  # the method of the config
    assert torch.equal(module.ref_model.table, module.model.table)
    assert module.ref_model.table.data_ptr() != module.model.table.data_ptr()
    assert not module.ref_model.table.requires_grad
    averaging = build(ref_update_method="ema", ema_alpha=0.5)
    with torch.no_grad():
        averaging.model.table.add_(1.0)
    averaging.update_ref_model()
    assert torch.allclose(averaging.ref_model.table, averaging.model.table - 0.5, rtol=0, atol=1e-12)


def test_entropy_is_analytic_and_masked():
    (logits,) = tensors((2, 3, 5))
    logits[0, 1, 2] = -math.inf
    mask = torch.tensor([[True, True, False], [False, True, False]])
    logits[~mask] = math.nan
    total = 0.0
    for row in logits[mask].tolist():
        weights = [math.exp(z) for z in row]
        total -= sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights if w > 0)
    logits.requires_grad_()
    found = compute_entropy(logits, mask)
    assert float(found.detach()) == pytest.approx(total / 3, abs=1e-12)
    found.backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[~mask].abs().sum() == 0
    assert logits.grad[0, 1, 2] == 0
    assert float(compute_entropy(torch.zeros(4, 8, dtype=F64))) == pytest.approx(math.log(8), abs=1e-12)
    assert torch.equal(compute_entropy(logits, mask.int()), found)


def patterns():
    """Return title -> code of docs/backprop.md; the code under "Usage" is what all others begin with."""
    text = (ROOT / "docs" / "backprop.md").read_text(encoding="utf-8")
    sections = re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]
    found = {}
    for section in sections:
        blocks = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        if blocks:
            found[section.partition("\n")[0]] = "\n".join(blocks)
    return found


PATTERNS = patterns()
LEARNED = {
    "PPO with several epochs": 0.9,
    "GRPO with a KL to the reference": 0.9,
    "REINFORCE": 0.9,
    "A schedule for the KL weight": 0.6,
    "Gradient accumulation": 0.9,
}


@pytest.mark.parametrize("title", LEARNED)
def test_the_documented_pattern_runs_and_learns(title):
    space = {}
    state = torch.get_rng_state()
    try:
        exec(compile(PATTERNS["Usage"], "docs/backprop.md", "exec"), space)
        exec(compile(PATTERNS[title], "docs/backprop.md", "exec"), space)
    finally:
        torch.set_rng_state(state)
    seen = space["rewards_seen"]
    assert sum(seen[:3]) / 3 < 0.35  # 1 / 8 by chance
    assert sum(seen[-5:]) / 5 > LEARNED[title]
    assert math.isfinite(space["report"]["grad_norm"])
    if title == "A schedule for the KL weight":
        assert space["kl_seen"][0] == 0.0 < space["kl_seen"][10] < space["kl_seen"][-1]


def printed_signature(function):
    """The signature without its types, as the documentation prints it."""
    parts, is_keyword = [], False
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            parts.append("*")
        parts.append(name if parameter.default is parameter.empty else f"{name}={parameter.default!r}".replace("'", '"'))
    return f"({', '.join(parts)})"


def test_every_documented_pattern_is_run_and_the_interface_is_the_documented_one():
    assert PATTERNS.keys() == {"Usage", *LEARNED}
    text = " ".join((ROOT / "docs" / "backprop.md").read_text(encoding="utf-8").split())
    methods = {name: method for name, method in vars(BackpropModule).items() if not name.startswith("_")}
    for function in (BackpropConfig, compute_returns, compute_entropy, *methods.values()):
        assert f"{function.__name__}{printed_signature(function)}" in text


def printed_example(length=4, seed=3):
    """Return what a usage pattern starts from: prompts [8, 1], replies [8, T], rewards [8, T] and values [8, T + 1]."""
    generator = torch.Generator().manual_seed(seed)
    prompts, responses = (torch.randint(5, (8, n), generator=generator) for n in (1, length))
    rewards = torch.rand(8, length, dtype=F64, generator=generator)
    values = torch.rand(8, length + 1, dtype=F64, generator=generator)
    return prompts, responses, rewards, values


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, F64])
def test_dones_and_masks_are_flags_of_any_type(dtype):
    module, (_, _, rewards, values) = build(), printed_example()
    dones = torch.tensor([[0, 1, 0, 1]] * 8).bool()
    is_valid = torch.tensor([[1, 1, 1, 0]] * 8).bool()
    flagged = {"dones": dones.to(dtype), "is_valid": is_valid.to(dtype)}
    want = module.compute_advantages(rewards, values, dones, is_valid=is_valid)
    assert torch.equal(module.compute_advantages(rewards, values, **flagged), want)
    want = compute_returns(rewards, values, dones, 0.9, is_valid=is_valid)
    assert torch.equal(compute_returns(rewards, values, gamma=0.9, **flagged), want)
    assert torch.equal(module.compute_advantages(rewards, None, dones.to(dtype)), module.compute_advantages(rewards, dones=dones))


@pytest.mark.parametrize("bad", [0.5, 2.0, -1.0, math.nan])
def test_a_flag_that_is_neither_0_nor_1_is_refused(bad):
    module, (_, _, rewards, values) = build(), printed_example()
    dones = torch.zeros_like(rewards)
    dones[2, 1] = bad
    with pytest.raises(ValueError, match=f"dones must be bool, or 0 and 1, got {bad}; give flags, not probabilities"):
        module.compute_advantages(rewards, values, dones)
    with pytest.raises(ValueError, match="is_valid must be bool, or 0 and 1"):
        module.compute_loss(rewards, rewards, is_valid=dones)


def ppo(**changes):
    inputs = ppo_example()[0] | changes
    return build().compute_ppo_loss(**{name: x for name, x in inputs.items() if x is not None})


ROWS = torch.ones(3, 4)
REFUSED = [
    ({"gamma": 1.01}, r"gamma must be within \[0, 1\], got 1.01"),
    ({"gamma": math.nan}, r"gamma must be within \[0, 1\], got nan"),
    ({"gae_lambda": -0.1}, r"gae_lambda must be within \[0, 1\], got -0.1"),
    ({"ema_alpha": 1.0}, "ema_alpha must be at least 0 and below 1, got 1.0"),
    ({"ppo_clip_range": 0.0}, "ppo_clip_range must be positive and finite, got 0.0"),
    ({"ppo_epochs": 0}, "ppo_epochs must be positive and finite, got 0"),
    ({"max_grad_norm": -1.0}, "max_grad_norm must be positive and finite, got -1.0"),
    ({"value_loss_coef": -0.1}, "value_loss_coef must be at least 0 and finite, got -0.1"),
    ({"entropy_coef": math.inf}, "entropy_coef must be at least 0 and finite, got inf"),
    ({"kl_coef": math.nan}, "kl_coef must be at least 0 and finite, got nan"),
    ({"ref_update_method": "polyak"}, "ref_update_method must be copy or ema, got 'polyak'"),
]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda setting=setting: BackpropConfig(**setting), f"^{sentence}; correct the setting$")
            for setting, sentence in REFUSED
        ),
        (lambda: build().compute_advantages(ROWS, ROWS), r"values must have shape \[3, 5\], T \+ 1 steps, got \[3, 4\]; append"),
        (lambda: compute_returns(ROWS, ROWS), r"values must have shape \[3, 5\], T \+ 1 steps, got \[3, 4\]"),
        (lambda: build().compute_advantages(ROWS, scope="group"), "scope must be batch or row, got 'group'; correct the setting"),
        (lambda: build().compute_relative_advantages(ROWS[0]), r"group_size must be given .*\[4\], got None; or pass \[P, G\]"),
        (lambda: build().compute_relative_advantages(ROWS, 3), r"rewards must have shape \[P, 3\], got \[3, 4\]; correct"),
        (lambda: build().compute_relative_advantages(ROWS[0], 5), "multiple of group_size 5, got 4"),
        (lambda: build().compute_loss(ROWS, ROWS, kl_weight=0.7), "kl_div must be given with kl_weight, got None with 0.7"),
        (lambda: build().update_ref_model("frozen"), "method must be copy or ema, got 'frozen'; correct the setting"),
        (lambda: build().update_ref_model("ema", alpha=1.5), "got 1.5"),
        (lambda: compute_entropy(ROWS[None], ROWS[None]), r"mask must have shape \[1, 3\], got \[1, 3, 4\]; one entry per"),
        (lambda: ppo(old_values=None), "old_values must be given when clip is set, got None"),
        (lambda: ppo(old_log_probs=ROWS[:, 1:]), r"old_log_probs must have shape \[3, 4\], got \[3, 3\]"),
        (lambda: ppo(advantages=ROWS[0]), r"advantages must have shape \[3, 4\], or one entry per row, got \[4\]"),
        (lambda: ppo(is_valid=ROWS[:, 1:]), r"is_valid must have shape \[3, 4\], got \[3, 3\]"),
        (lambda: ppo(kl_div=ROWS[:, 0]), r"kl_div must be a scalar or have shape \[3, 4\], got \[3\]"),
        (lambda: ppo(entropy=ROWS[:, 0]), r"entropy must be a scalar or have shape \[3, 4\], got \[3\]"),
        (
            lambda: ppo(values=torch.zeros(3, 5)),
            r"values and returns must have shape \[3, 4\].* got \[3, 5\] and \[3, 4\]; leave",
        ),
        (lambda: ppo(returns=None), "returns must be given with values, got None"),
        (lambda: ppo(values=None), "values must be given with returns, got None"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_constructor_takes_either_order_and_names_what_is_no_config():
    model, value_model, config = TableModel(), nn.Linear(1, 1), BackpropConfig(gamma=0.5)
    optimizer = torch.optim.SGD([*model.parameters(), *value_model.parameters()], lr=0.1)
    for arguments in ((config, value_model), (value_model, config), (config,), (None, config)):
        module = BackpropModule(model, optimizer, *arguments)
        assert (module.config, module.value_model) == (config, value_model if value_model in arguments else None)
    for arguments, got in (((), "NoneType"), (({"gamma": 0.9},), "dict"), ((model,), "TableModel")):
        with pytest.raises(TypeError, match=f"config must be a BackpropConfig, got {got}"):
            BackpropModule(model, optimizer, *arguments)
    with pytest.raises(TypeError, match="value_model must be a torch module or None, got BackpropConfig"):
        BackpropModule(model, optimizer, config, config)
    with pytest.raises(TypeError, match="optimizer must be a torch optimiser, got TableModel"):
        BackpropModule(model, model, config)


def test_update_and_accumulate_take_the_mapping_its_total_or_a_scalar():
    moved = []
    for form in (lambda losses: losses, lambda losses: losses["total_loss"], lambda losses: 1.0 * losses["total_loss"]):
        for step in ("update", "accumulate"):
            module, (prompts, responses, rewards, _) = build(kl_coef=0.1), printed_example()
            log_probs = response_logprobs(module.model, prompts, responses)
            loss = form(module.compute_loss(log_probs, rewards, kl_div=module.compute_kl(prompts, responses)))
            getattr(module, step)(loss)
            if step == "accumulate":
                module.step()
            moved.append(module.model.table.detach())
    assert all(torch.equal(table, moved[0]) for table in moved)
    assert not torch.equal(moved[0], TableModel().table)
    for wrong, got in (({"loss": torch.zeros(())}, "got the keys ['loss']"), (1.5, "got float")):
        with pytest.raises(TypeError, match=re.escape(f"the loss must be a scalar or a mapping with total_loss, {got}")):
            build().update(wrong)
