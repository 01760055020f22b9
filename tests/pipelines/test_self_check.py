"""The figures are saved before the run stops, and what is saved is what the command prints."""

import contextlib
import json
from dataclasses import replace

import pytest
import torch
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from kedro_datasets.json import JSONDataset
from kedro_datasets.text import TextDataset

from grpo_pipeline.core import self_check as core
from grpo_pipeline.core.diagnostics import set_bandit
from grpo_pipeline.core.policy_gradient import advantages
from grpo_pipeline.core.sampling import plackett_luce
from grpo_pipeline.core.self_check import Check, SelfCheckError, SelfCheckResult, VariantResult
from grpo_pipeline.pipelines import self_check
from grpo_pipeline.pipelines.step import collect, update

LOOP = {"training_loop": False, "loop_of_micro_batches": False, "loop_of_independent_draws": True}


@pytest.mark.parametrize("hit_rate", [0.99, 0.5])
def test_figures_and_table_are_saved_and_a_failure_stops_the_run_after_its_figures(monkeypatch, tmp_path, hit_rate):
    grpo = VariantResult("grpo", False, (Check("hit_rate", hit_rate, 0.98),), steps=40)
    monkeypatch.setattr(core, "run_self_check", lambda seed: SelfCheckResult(seed=seed, variants=(grpo,)))
    result, table = tmp_path / "result.json", tmp_path / "table.txt"
    datasets = {
        "params:seed": MemoryDataset(5), "self_check.table": TextDataset(filepath=str(table)),
        "self_check.result": JSONDataset(filepath=str(result), save_args={"allow_nan": False}),
    }  # fmt: skip
    passes = hit_rate > 0.98
    message = "the installed code must pass its self-check, got grpo: DOES NOT LEARN; reinstall"
    with contextlib.nullcontext() if passes else pytest.raises(SelfCheckError, match=message):
        SequentialRunner().run(self_check.create_pipeline(), DataCatalog(datasets))
    saved = json.loads(result.read_text())
    variants = dict(saved["variants"])
    assert {**saved, "variants": {"grpo": variants.pop("grpo")}} == core.run_self_check(5).to_dict()
    assert {name: variant["is_defect"] for name, variant in variants.items()} == LOOP
    assert all(variant["is_as_wanted"] for variant in variants.values())
    assert table.exists() == passes
    if passes:
        assert table.read_text() == core.format_table(saved)
        assert table.read_text().endswith("self-check passed, seed 5")


def test_the_hit_rate_of_sets_is_that_of_what_is_drawn():
    logits = set_bandit.shuffled_logits(0)
    allowed, generator = torch.ones_like(logits, dtype=torch.bool), torch.Generator().manual_seed(0)
    actions = plackett_luce.gumbel_top_k(logits, set_bandit.PICKS, 5000, generator=generator, is_allowed=allowed)
    prompts = torch.arange(set_bandit.PROMPTS)
    hits = set_bandit.rewards(actions, prompts) - set_bandit.PAY * prompts[:, None]
    exact = float(set_bandit.hit_rate(logits))
    assert float(hits.mean()) == pytest.approx(exact, abs=5 * (exact * (1 - exact) / hits.numel()) ** 0.5)
    assert float(set_bandit.hit_rate(set_bandit.equal_logits())) == pytest.approx((3 * 9 + 1) / 220, abs=1e-12)
    torch.testing.assert_close(
        set_bandit.exact_logprobs(logits, actions),
        plackett_luce.plackett_luce_logprobs(logits, actions, is_allowed=allowed).sum(-1),
    )


def wrong_policy(function):
    """Score the present policy's actions from another temperature: sampling and update disagree."""
    return lambda *args: function(*args[:4], replace(args[4], temperature=2.0), args[5])


def changed(field, change):
    """Return a fault: one field of what the function returns is another."""

    def fault(function):
        def spoilt(*args, **kwargs):
            found = function(*args, **kwargs)
            return replace(found, **{field: change(getattr(found, field))})

        return spoilt

    return fault


@pytest.mark.parametrize(
    ("module", "name", "fault"),
    [
        (advantages, "_baseline", lambda _: lambda r, is_scored, values: r.nanmean().expand(len(r), 1)),
        (plackett_luce, "log_remaining", lambda _: lambda z, taken, is_taken: z.logsumexp(-1)[:, None, None].expand_as(taken)),
        (collect, "combine_rewards", changed("total", lambda total: total.roll(1, dims=1))),
        (collect, "compute_advantages", changed("values", torch.neg)),
        (update, "score_actions", wrong_policy),
    ],
    ids=["baseline_of_the_batch", "independent_draws", "rewards_of_other_samples", "sign", "another_temperature"],
)
def test_a_fault_in_the_loop_is_found(monkeypatch, module, name, fault):
    monkeypatch.setattr(module, name, fault(getattr(module, name)))
    if fault is wrong_policy:  # a loop whose first ratio is not 1 does not go on
        with pytest.raises(ValueError, match="policy/ratio_first must be 1"):
            self_check.check_loop("training_loop", seed=0)
    else:
        assert not self_check.check_loop("training_loop", seed=0).passed
