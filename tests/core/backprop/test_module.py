"""The facade against naive loops, and the usage patterns of docs/backprop.md as they stand there."""

import inspect
import math
import re
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from refusals import refuses
from torch import nn

from grpo_pipeline.core.backprop import BackpropConfig, BackpropModule, compute_entropy, compute_returns
from grpo_pipeline.core.backprop.response_logprobs import response_logprobs
from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.policy_gradient.whitening import whiten

F64 = torch.float64
ROOT = Path(__file__).resolve().parents[3]


class TableModel(nn.Module):
    """The distribution of the next token depends on the last one."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(tensors((5, 5))[0])

    def forward(self, ids, attention_mask=None):
        return self.table[ids]


def build(*, lr=0.1, **settings):
    model = TableModel()
    return BackpropModule(model, torch.optim.SGD(model.parameters(), lr=lr), BackpropConfig(**settings))


def tensors(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=F64, generator=generator) for shape in shapes]


def shift(parameter, by):
    with torch.no_grad():
        parameter += by


@pytest.mark.parametrize(
    ("compute", "values", "dones", "lam", "wanted"),
    [
        # t = 2: 4 + 0.5 * 8 - 3 = 5 (bootstrap);  t = 1: 2 - 1 = 1 (done);  t = 0: (1 + 0.5 * 1 - 0.5) + 0.25 * 1 = 1.25
        ("advantages", [0.5, 1.0, 3.0, 8.0], [0, 1, 0], 0.5, [1.25, 1.0, 5.0]),
        ("advantages", [0.5, 1.0, 3.0, 8.0], [0, 1, 1], 0.5, [1.25, 1.0, 1.0]),
        # Without values discounted: 4; 2 + 0.5 * 4 = 4; 1 + 0.5 * 4 = 3, or 1 where the episode ended; lambda is not used.
        ("advantages", None, None, 0.1, [3.0, 4.0, 4.0]),
        ("advantages", None, [1, 0, 0], 0.1, [1.0, 4.0, 4.0]),
        # 4 + 0.5 * 8 = 8;  2 + 0.5 * 8 = 6;  1 + 0.5 * 6 = 4: the last value alone counts at lambda 1
        ("returns", [50.0, 60.0, 70.0, 8.0], None, 1.0, [4.0, 6.0, 8.0]),
        ("returns", [50.0, 60.0, 70.0, 8.0], [0, 1, 1], 1.0, [2.0, 2.0, 4.0]),
        ("returns", None, None, 1.0, [3.0, 4.0, 4.0]),
        # 8;  2 + 0.5 * (3 + 8) / 2 = 4.75;  1 + 0.5 * (1 + 4.75) / 2 = 2.4375
        ("returns", [0.5, 1.0, 3.0, 8.0], None, 0.5, [2.4375, 4.75, 8.0]),
    ],
)
def test_golden_advantages_and_returns_carry_no_gradient(compute, values, dones, lam, wanted):
    rewards = torch.tensor([[1.0, 2.0, 4.0]], dtype=F64, requires_grad=True)
    values = None if values is None else torch.tensor([values], dtype=F64, requires_grad=True)
    given = rewards, values, None if dones is None else torch.tensor([dones]).bool()
    if compute == "returns":
        found = [compute_returns(*given, gamma=0.5, lam=lam)]
    else:  # of the call, or of the config
        found = [build(normalize_advantages=False).compute_advantages(*given, 0.5, lam)]
        found.append(build(normalize_advantages=False, gamma=0.5, gae_lambda=lam).compute_advantages(*given))
    assert [(x.tolist(), x.requires_grad) for x in found] == [([wanted], False)] * len(found)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, F64])
def test_padding_is_left_out_and_flags_are_of_any_type(dtype):
    rewards, values = tensors((3, 6), (3, 7))
    dones = torch.zeros(3, 6).index_fill(1, torch.tensor(1), 1.0)
    is_valid = torch.arange(6) < torch.tensor([[6], [2], [4]])
    flags = {"dones": dones.to(dtype), "is_valid": is_valid.to(dtype)}
    padded = rewards.masked_fill(~is_valid, math.nan), values.clone()
    padded[1][:, :6][~is_valid] = math.nan
    raw = build(normalize_advantages=False).compute_advantages(*padded, **flags)
    for row, length in enumerate((6, 2, 4)):  # a row that is padded after its last step has ended there
        cut = values[row : row + 1, : length + 1] * (torch.arange(length + 1) < length if length < 6 else 1)
        short = rewards[row : row + 1, :length], cut, dones[row : row + 1, :length].bool()
        alone = build(normalize_advantages=False).compute_advantages(*short)
        torch.testing.assert_close(raw[row, :length], alone[0], atol=1e-12, rtol=0)
        targets = compute_returns(*padded, gamma=0.9, lam=0.7, **flags)
        torch.testing.assert_close(targets[row, :length], compute_returns(*short, 0.9, lam=0.7)[0], atol=1e-12, rtol=0)
        assert not torch.cat([raw[row, length:], targets[row, length:]]).any()
    for scope, of_core in (("batch", "batch"), ("row", "group")):
        whitened = whiten(raw, is_valid, scope=of_core, eps=1e-8)
        torch.testing.assert_close(build().compute_advantages(*padded, **flags, scope=scope), whitened, atol=1e-6, rtol=0)
    for bad in (0.5, 2.0, -1.0, math.nan):
        wrong = torch.zeros_like(rewards).index_fill(0, torch.tensor(2), bad)
        with pytest.raises(ValueError, match=f"dones must be bool, or 0 and 1, got {bad}; give flags, not probabilities"):
            build().compute_advantages(rewards, values, wrong)
        with pytest.raises(ValueError, match="is_valid must be bool, or 0 and 1"):
            build().compute_loss(rewards, rewards, is_valid=wrong)


def test_a_zero_that_is_given_takes_the_place_of_the_setting():
    module = build(gamma=0.5, gae_lambda=0.5, normalize_advantages=False, kl_coef=0.3, ref_update_method="ema", ema_alpha=0.5)
    rewards, values = torch.tensor([[1.0, 2.0]], dtype=F64), torch.tensor([[0.5, 1.0, 3.0]], dtype=F64)
    # One step ahead: 2 + 0.5 * 3 - 1 = 2.5 and 1 + 0.5 * 1 - 0.5 = 1, to which 0.5 * 0.5 * 2.5 comes; without gamma 1 and 0.5.
    for given, wanted in (({}, [1.625, 2.5]), ({"lam": 0.0}, [1.0, 2.5]), ({"gamma": 0.0}, [0.5, 1.0])):
        assert module.compute_advantages(rewards, values, **given)[0].tolist() == wanted
    kl, logprobs = torch.tensor(2.0, dtype=F64), torch.zeros(1, 2, dtype=F64, requires_grad=True)
    for given, wanted in (({}, 0.6), ({"kl_weight": 0.0}, 0.0)):
        losses = module.compute_loss(logprobs, torch.zeros(1, 2, dtype=F64), kl_div=kl, **given)
        assert losses["total_loss"].item() == wanted
    before = module.ref_model.table.clone()
    shift(module.model.table, 1.0)
    module.update_ref_model(alpha=0.0)  # all of the model
    torch.testing.assert_close(module.ref_model.table, before + 1.0)


def test_relative_advantages_are_those_of_the_method_for_groups_and_for_their_rows():
    (rewards,) = tensors((2, 4))
    for normalised, method, of_core in [
        (True, None, "group"),
        (False, None, "mean_only"),
        (True, "leave_one_out", "leave_one_out"),
    ]:
        wanted = compute_advantages(rewards, method=of_core).values
        relative = build(normalize_advantages=normalised).compute_relative_advantages
        for found in (relative(rewards, method=method), relative(rewards, 4, method=method)):
            assert torch.equal(found, wanted)
        assert torch.equal(relative(rewards.flatten(), 4, method=method), wanted.flatten())


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_kl_is_the_masked_mean_of_k3_with_a_gradient_to_the_model_alone(dtype):
    module = build()
    shift(module.model.table, 0.5 * tensors((5, 5), seed=1)[0])
    module.ref_model.requires_grad_(True)
    prompts, responses = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[4, 0, 2], [1, 1, 3]])
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 0, 0]], dtype=dtype)
    # (token before, token): the pairs whose second token is real and belongs to a response.
    before, token = torch.tensor([[1, 4, 3], [4, 0, 1]])
    log_p, log_q = (m.table.log_softmax(-1)[before, token] for m in (module.model, module.ref_model))
    wanted = ((log_q - log_p).exp() - (log_q - log_p) - 1).mean()
    (slope,) = torch.autograd.grad(wanted, module.model.table)
    wanted = wanted.detach()
    found = module.compute_kl(prompts, responses, mask)
    assert float(found.detach()) == pytest.approx(float(wanted), abs=1e-12)
    found.backward()
    assert module.ref_model.table.grad is None
    torch.testing.assert_close(module.model.table.grad, slope, atol=1e-12, rtol=0)
    assert float(module.compute_kl(prompts, responses, ref_override=module.model).detach()) == 0.0


def decisions(seed):
    """Everything that a loss may take, [3, 4], and a mask; padding is NaN."""
    new, noise, advantages, values, drift, returns, entropy, kl = tensors(*[(3, 4)] * 8, seed=seed)
    is_valid = torch.arange(4) < torch.tensor([[4], [1], [3]])
    inputs = {
        "current_log_probs": new, "old_log_probs": new + 0.3 * noise, "advantages": advantages, "values": values,
        "old_values": values + 0.5 * drift, "returns": returns, "entropy": entropy, "kl_div": kl.abs(),
    }  # fmt: skip
    return {name: x.masked_fill(~is_valid, math.nan).requires_grad_() for name, x in inputs.items()}, is_valid


def naive_losses(inputs, is_valid, *, clip=0.1, clip_value=True, has_ratio=True):
    sums, ratios = dict.fromkeys(("policy", "value", "entropy", "kl"), 0.0), []
    columns = [x[is_valid].tolist() for x in inputs.values()]
    for lp, o, a, v, w, target, h, kl in zip(*columns, strict=True):
        r = math.exp(lp - o)
        ratios.append(r)
        sums["policy"] -= min(r * a, min(max(r, 1 - clip), 1 + clip) * a) if has_ratio else a * lp
        held = w + min(max(v - w, -clip), clip) if clip_value else v
        sums["value"] += 0.5 * max((v - target) ** 2, (held - target) ** 2)
        sums["entropy"] -= h
        sums["kl"] += kl
    n, mean = len(ratios), sum(ratios) / len(ratios)
    found = {f"{name}_loss": total / n for name, total in sums.items() if has_ratio or name != "value"}
    weights = {"policy_loss": 1.0, "value_loss": 0.5, "entropy_loss": 0.25, "kl_loss": 0.3}
    found["total_loss"] = sum(weights[name] * x for name, x in found.items())
    moments = {"ratio_mean": mean, "ratio_std": math.sqrt(sum((r - mean) ** 2 for r in ratios) / n)}
    return found | (moments if has_ratio else {})


@pytest.mark.parametrize(("has_ratio", "clip_value"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("seed", range(2))
def test_losses_agree_with_a_naive_loop_and_padding_reaches_no_gradient(seed, has_ratio, clip_value):
    settings = {"value_loss_coef": 0.5, "entropy_coef": 0.25, "kl_coef": 0.3, "ppo_clip_range": 0.1}
    module, (inputs, is_valid) = build(**settings, clip_value_loss=clip_value), decisions(seed)
    given = inputs if has_ratio else {name: inputs[name] for name in ("advantages", "entropy", "kl_div")}
    given = given if has_ratio else given | {"log_probs": inputs["current_log_probs"]}
    compute = partial(module.compute_ppo_loss if has_ratio else module.compute_loss, **given)
    found = compute(is_valid=is_valid.to(torch.int64))
    wanted = naive_losses(inputs, is_valid, clip_value=clip_value, has_ratio=has_ratio)
    assert {name: float(x.detach()) for name, x in found.items()} == pytest.approx(wanted, abs=1e-12)
    # A weight of the call takes the place of the coefficient.
    heavy = float(compute(is_valid=is_valid, kl_weight=0.8)["total_loss"].detach())
    assert heavy - wanted["total_loss"] == pytest.approx(0.5 * wanted["kl_loss"], abs=1e-12)
    assert {name for name, x in found.items() if x.requires_grad} == {"total_loss"}
    found["total_loss"].backward()
    trained = {"current_log_probs", "entropy", "kl_div"} | ({"values"} if has_ratio else set())
    assert {name for name, x in inputs.items() if x.grad is not None} == trained
    for name in trained:
        assert inputs[name].grad.isfinite().all()
        assert inputs[name].grad[~is_valid].abs().sum() == 0 < inputs[name].grad[is_valid].abs().sum()


def test_absent_terms_are_zero_scalars_pass_and_an_entry_per_row_stands_for_the_row():
    module, (inputs, _) = build(clip_value_loss=False), decisions(0)
    lp, advantages = (inputs[name].detach().nan_to_num(0.3) for name in ("current_log_probs", "advantages"))
    is_valid = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
    found = {name: float(x) for name, x in module.compute_ppo_loss(lp, lp, advantages[:, 0], is_valid=is_valid).items()}
    mean = -float(4 * advantages[0, 0] + advantages[1, 0]) / 5
    absent = {"value_loss": 0.0, "entropy_loss": 0.0, "kl_loss": 0.0, "ratio_mean": 1.0, "ratio_std": 0.0}
    assert found == pytest.approx(absent | {"total_loss": mean, "policy_loss": mean}, abs=1e-15)
    scalars = {"values": torch.tensor([1.0, 2.0, 9.0]), "returns": torch.zeros(3), "kl_div": torch.tensor(0.25)}
    found = module.compute_ppo_loss(lp, lp, advantages, is_valid=is_valid, **scalars)
    # Two rows have a valid decision: 0.5 * (1 + 4) / 2.
    assert (float(found["value_loss"]), float(found["kl_loss"])) == (1.25, 0.25)


@pytest.mark.parametrize("limit", [0.5, None])
def test_update_is_one_clipped_gradient_step_of_its_own(limit):
    module = build(lr=1.0, max_grad_norm=limit)
    start = module.model.table.detach().clone()
    report = module.update(module.model.table.square().sum())
    norm = 2 * float(start.norm())
    assert report == pytest.approx({"grad_norm": norm, "loss": float(start.square().sum())}, abs=1e-12)
    scale = 1.0 if limit is None else limit / norm
    assert torch.allclose(module.model.table, start - scale * 2 * start, rtol=0, atol=1e-6)
    still = build(lr=0.0)
    first = still.update(still.model.table.square().sum())
    assert still.update(still.model.table.square().sum()) == first  # the gradient before it is forgotten
    still.accumulate(still.model.table.square().sum())
    with pytest.raises(ValueError, match=r"accumulated gradients must be used before an update, got some pending"):
        still.update(still.model.table.sum())
    assert still.step() == first


def test_the_reference_moves_on_request_alone_by_a_copy_or_an_average():
    module = build(ema_alpha=0.75)
    old, new = module.ref_model.table.clone(), tensors((5, 5), seed=9)[0]
    module.update(module.model.table.square().sum())
    assert torch.equal(module.ref_model.table, old)
    shift(module.model.table, new - module.model.table)
    module.update_ref_model("ema")
    assert torch.allclose(module.ref_model.table, 0.75 * old + 0.25 * new, rtol=0, atol=1e-12)
    module.update_ref_model("ema", alpha=0.0)
    assert torch.allclose(module.ref_model.table, new, rtol=0, atol=1e-12)
    for either, left in ((module, 0.0), (build(ref_update_method="ema", ema_alpha=0.5), 0.5)):  # the method of the config
        shift(either.model.table, 1.0)
        either.update_ref_model()
        assert torch.allclose(either.ref_model.table, either.model.table - left, rtol=0, atol=1e-12)
        assert either.ref_model.table.data_ptr() != either.model.table.data_ptr()
        assert not either.ref_model.table.requires_grad


def test_entropy_is_analytic_and_masked():
    (logits,) = tensors((2, 3, 5))
    logits[0, 1, 2] = -math.inf
    mask = torch.tensor([[True, True, False], [False, True, False]])
    logits[~mask] = math.nan
    wanted = torch.distributions.Categorical(logits=logits[mask].clamp(min=-1e9)).entropy().mean()
    logits.requires_grad_()
    found = compute_entropy(logits, mask)
    assert float(found.detach()) == pytest.approx(float(wanted), abs=1e-12)
    found.backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[~mask].abs().sum() == logits.grad[0, 1, 2] == 0
    assert float(compute_entropy(torch.zeros(4, 8, dtype=F64))) == pytest.approx(math.log(8), abs=1e-12)
    assert torch.equal(compute_entropy(logits, mask.int()), found)


def patterns():
    """Return title -> code of docs/backprop.md; the code under "Usage" is what all others begin with."""
    text = (ROOT / "docs" / "backprop.md").read_text(encoding="utf-8")
    found = {}
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        if blocks := re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
            found[section.partition("\n")[0]] = "\n".join(blocks)
    return found


PATTERNS = patterns()
LEARNED = {
    "PPO with several epochs": 0.9, "GRPO with a KL to the reference": 0.9, "REINFORCE": 0.9,
    "A schedule for the KL weight": 0.6, "Gradient accumulation": 0.9,
}  # fmt: skip


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


def test_every_documented_pattern_is_run_and_the_interface_is_the_documented_one():
    assert PATTERNS.keys() == {"Usage", *LEARNED}
    text = " ".join((ROOT / "docs" / "backprop.md").read_text(encoding="utf-8").split())
    methods = {name: method for name, method in vars(BackpropModule).items() if not name.startswith("_")}
    for function in (BackpropConfig, compute_returns, compute_entropy, *methods.values()):
        shown = inspect.signature(function)
        bare = [p.replace(annotation=p.empty) for name, p in shown.parameters.items() if name != "self"]
        shown = str(shown.replace(parameters=bare, return_annotation=shown.empty))
        assert f"{function.__name__}{shown}".replace("'", '"') in text


def ppo(**changes):
    inputs = {name: x.detach().nan_to_num(0.0) for name, x in decisions(0)[0].items()} | changes
    return build().compute_ppo_loss(**{name: x for name, x in inputs.items() if x is not None})


ROWS = torch.ones(3, 4)
SETTINGS = [
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


test_refuses = refuses(
    *((partial(BackpropConfig, **setting), f"^{sentence}; correct the setting$") for setting, sentence in SETTINGS),
    (lambda: build().compute_advantages(ROWS, ROWS), r"values must have shape \[3, 5\], got \[3, 4\]; there are T \+ 1"),
    (lambda: compute_returns(ROWS, ROWS), r"values must have shape \[3, 5\], got \[3, 4\]"),
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
    (lambda: ppo(values=torch.zeros(3, 6)), r"values and returns must have shape \[3, 4\].* got \[3, 6\] and \[3, 4\]"),
    (lambda: ppo(returns=None), "returns must be given with values, got None"),
    (lambda: ppo(values=None), "values must be given with returns, got None"),
)


def test_the_constructor_takes_either_order_and_names_what_is_wrong():
    model, value_model, config = TableModel(), nn.Linear(1, 1), BackpropConfig(gamma=0.5)
    optimizer = torch.optim.SGD([*model.parameters(), *value_model.parameters()], lr=0.1)
    for arguments in ((config, value_model), (value_model, config), (config,), (None, config)):
        module = BackpropModule(model, optimizer, *arguments)
        assert (module.config, module.value_model) == (config, value_model if value_model in arguments else None)
    other = nn.Linear(2, 1)
    for wrong, error, sentence in [
        ((model, optimizer), TypeError, "config must be a BackpropConfig, got NoneType"),
        ((model, optimizer, {"gamma": 0.9}), TypeError, "config must be a BackpropConfig, got dict"),
        ((model, optimizer, model), TypeError, "config must be a BackpropConfig, got TableModel"),
        ((model, optimizer, config, config), TypeError, "value_model must be a torch module or None, got BackpropConfig"),
        ((model, model, config), TypeError, "optimizer must be a torch optimiser, got TableModel"),
        ((model, optimizer, config, other), ValueError, "of value_model must be in the optimiser, got 2 .*first 'weight'; add"),
        ((TableModel(), optimizer, config), ValueError, r"parameter of model must be in the optimiser, got 1 .*first 'table'"),
    ]:
        with pytest.raises(error, match=sentence):
            BackpropModule(*wrong)
    assert BackpropModule(model, optimizer, config, other.requires_grad_(False)).value_model is other


def test_update_and_accumulate_take_the_mapping_its_total_or_a_scalar():
    moved = []
    (rewards,), prompts, responses = tensors((8, 4)), torch.arange(8)[:, None] % 5, torch.arange(32).view(8, 4) * 7 % 5
    for form in (lambda losses: losses, lambda losses: losses["total_loss"], lambda losses: 1.0 * losses["total_loss"]):
        for step in ("update", "accumulate"):
            module = build(kl_coef=0.1)
            log_probs = response_logprobs(module.model, prompts, responses)
            getattr(module, step)(form(module.compute_loss(log_probs, rewards, module.compute_kl(prompts, responses))))
            if step == "accumulate":
                module.step()
            moved.append(module.model.table.detach())
    assert all(torch.equal(table, moved[0]) for table in moved)
    assert not torch.equal(moved[0], TableModel().table)
    for wrong, got in (({"loss": torch.zeros(())}, "got the keys ['loss']"), (1.5, "got float")):
        with pytest.raises(TypeError, match=re.escape(f"the loss must be a scalar or a mapping with total_loss, {got}")):
            build().update(wrong)


@pytest.mark.parametrize("old_has_bootstrap", [True, False])
def test_the_bootstrap_among_the_values_is_no_decision(old_has_bootstrap):
    """Values as ``compute_advantages`` takes them, [B, T + 1]: the last column has no target, and gets no gradient."""
    module, (inputs, is_valid) = build(ppo_clip_range=0.1, value_loss_coef=0.5), decisions(1)
    given = {name: x.detach() for name, x in inputs.items()}
    wanted = module.compute_ppo_loss(**given, is_valid=is_valid)
    column = torch.full((3, 1), 1e6, dtype=F64)
    values = torch.cat([given["values"], column], 1).requires_grad_()
    old = torch.cat([given["old_values"], -column], 1) if old_has_bootstrap else given["old_values"]
    found = module.compute_ppo_loss(**given | {"values": values, "old_values": old}, is_valid=is_valid)
    assert {name: float(x.detach()) for name, x in found.items()} == {name: float(x) for name, x in wanted.items()}
    found["total_loss"].backward()
    assert values.grad[:, -1].abs().sum() == 0 < values.grad[:, :-1].abs().sum()


def test_a_prompt_stands_for_its_adjacent_responses():
    """Two prompts of three responses each: the KL is that of six prompts, each repeated in its place."""
    module = build()
    shift(module.model.table, torch.linspace(-0.5, 0.5, 25).reshape(5, 5))
    prompts, responses = torch.tensor([[1, 2], [3, 0]]), torch.tensor([[0, 1], [2, 3], [4, 4], [1, 0], [0, 2], [3, 3]])
    whole = torch.tensor([[1, 2]] * 3 + [[3, 0]] * 3)
    mask = torch.tensor([[1, 1, 1, 1]] * 4 + [[1, 1, 1, 0]] * 2)
    for given in ((), (mask,)):
        found, wanted = module.compute_kl(prompts, responses, *given), module.compute_kl(whole, responses, *given)
        assert float(found.detach()) == float(wanted.detach()) > 1e-3
    turned = module.compute_kl(prompts.flip(0), responses)
    assert abs(float((turned - module.compute_kl(prompts, responses)).detach())) > 1e-4
    with pytest.raises(ValueError, match="each prompt as many adjacent responses"):
        module.compute_kl(prompts, responses[:5])


def test_returns_are_discounted_sums_unless_lam_says_otherwise():
    """The default is lam = 1, and not the 0.95 of a config: 1 + 0.99 * 2 = 2.98."""
    assert inspect.signature(compute_returns).parameters["lam"].default == 1.0
    found = compute_returns(torch.tensor([[1.0, 2.0]], dtype=F64), torch.tensor([[7.0, 7.0, 0.0]], dtype=F64))
    assert found.tolist() == [[pytest.approx(2.98, abs=1e-12), 2.0]]
    assert "by default discounted returns" in compute_returns.__doc__


HARMFUL = {
    "ppo_epochs": (20, 10, "ppo_epochs should be at most 10, got 20;"),
    "max_grad_norm": (None, 50.0, "max_grad_norm should be a number, got None;"),
    "ppo_clip_range": (1.0, 0.99, "ppo_clip_range should be below 1, got 1;"),
    "value_loss_coef": (10.0, 1.0, "value_loss_coef should be at most 1, got 10;"),
    "ema_alpha": (0.9999, 0.999, "ema_alpha should be below 0.9999, got 0.9999;"),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_setting_that_is_known_to_do_harm_warns_and_its_neighbour_does_not(name):
    harmful, right, sentence = HARMFUL[name]
    with pytest.warns(UserWarning, match=sentence) as said:
        BackpropConfig(**{name: harmful}, ref_update_method="ema")
    assert [warning.filename for warning in said] == [__file__]  # it names the line that wrote the setting
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BackpropConfig(**{name: right}, ref_update_method="ema")


@pytest.mark.parametrize("moves", [True, False])
def test_a_reference_that_never_moves_is_said_once(moves):
    """100 updates with a KL to it; moved after 99, or kept on purpose by ``ref_override``, it is not spoken of."""
    module, other = build(kl_coef=0.3), build().ref_model
    prompts, responses = torch.tensor([[1], [2]]), torch.tensor([[0, 1], [2, 3]])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(198):
            module.update(module.compute_kl(prompts, responses, ref_override=None if step else other))
            if moves and step == 98:  # 99 updates before it, 99 after
                module.update_ref_model()
    told = [str(warning.message) for warning in said if "update_ref_model" in str(warning.message)]
    assert len(told) == (0 if moves else 1)
    assert moves or told[0].startswith("the reference should move where a KL to it is paid, got 100 updates")
