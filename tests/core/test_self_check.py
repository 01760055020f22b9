"""The self-check passes on the installed code, and fails on code that is broken on purpose."""

import json
import runpy
import sys
import time
from contextlib import nullcontext

import pytest

from grpo_pipeline.core import self_check
from grpo_pipeline.core.diagnostics import set_bandit
from grpo_pipeline.core.sampling import plackett_luce
from grpo_pipeline.core.self_check import Check, SelfCheckResult, VariantResult

SOUND = {"grpo", "reinforce", "analytic_entropy", "sets_of_three"}
DEFECTS = {
    "resampled_actions", "flipped_sign", "misplaced_advantages", "pseudo_entropy", "independent_draws", "baseline_of_the_batch",
}  # fmt: skip
# What a defect of sets fails: the other figure of the two does not depend on it, or hardly.
FAILED_BY = {"independent_draws": "likelihood_mass", "baseline_of_the_batch": "set_gradient_cosine"}


@pytest.mark.slow
def test_the_command_passes_sound_code_and_fails_each_defect_where_it_touches_a_figure(monkeypatch, capsys):
    before = time.process_time()
    monkeypatch.setattr(sys, "argv", ["self_check", "--json"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(self_check.__file__, run_name="__main__")
    assert time.process_time() - before < 20
    said = capsys.readouterr().out
    assert end.value.code == 0, said
    result = json.loads(said)
    assert (result["passed"], result["seed"]) == (True, 0)
    assert result["setting"] == {"prompts": 8, "cells": 64, "good_cells": 8, "group_size": 4}
    variants = result["variants"]
    kinds = {name: variant["is_defect"] for name, variant in variants.items()}
    assert kinds == dict.fromkeys(SOUND, False) | dict.fromkeys(DEFECTS, True)
    for name, variant in variants.items():
        assert variant["is_as_wanted"]
        wanted = dict.fromkeys(("gradient_cosine", "hit_rate", "best_logprob_gain"), not variant["is_defect"])
        if "entropy" in name:
            wanted = dict.fromkeys(("entropy_gradient_cosine", "entropy_gain"), not variant["is_defect"])
        if name in {"sets_of_three", *FAILED_BY}:
            wanted = {check: FAILED_BY.get(name) != check for check in ("likelihood_mass", "set_gradient_cosine")}
        assert {check: figure["passed"] for check, figure in variant["checks"].items()} == wanted, name
    assert all(variants[name]["steps"] < 400 for name in ("grpo", "reinforce"))


@pytest.mark.parametrize("seed", range(4))
def test_the_figures_of_sets_are_far_from_their_limits(seed):
    sound, *defects = (
        {check.name: check.value for check in self_check.check_sets("x", seed=seed, **changes).checks}
        for changes in ({}, {"likelihood": plackett_luce.independent_logprobs}, {"compare": set_bandit.batch_advantages})
    )
    assert sound["likelihood_mass"] == pytest.approx(1.0, abs=1e-12)
    assert sound["set_gradient_cosine"] > 0.99
    assert defects[0]["likelihood_mass"] < 0.9
    assert defects[1]["set_gradient_cosine"] < 0.9


def result_with(*, sound=1.0, defect=0.0):
    first, second = (
        VariantResult(name, name != "grpo", (Check("hit_rate", value, 0.98), Check("gradient_cosine", 1.0, 0.99)), steps=40)
        for name, value in (("grpo", sound), ("flipped_sign", defect))
    )
    return SelfCheckResult(seed=3, variants=(first, second))


@pytest.mark.parametrize(
    ("figures", "failures"),
    [
        ({}, ""), ({"sound": 0.98}, ""), ({"defect": float("nan")}, ""),
        ({"sound": 0.979}, "grpo: DOES NOT LEARN"), ({"sound": float("nan")}, "grpo: DOES NOT LEARN"),
        ({"defect": 1.0}, "flipped_sign: DEFECT THAT PASSED"),
        ({"sound": 0.5, "defect": 1.0}, "grpo: DOES NOT LEARN; flipped_sign: DEFECT THAT PASSED"),
    ],
)  # fmt: skip
def test_sound_code_passes_and_defects_fail_else_the_status_and_a_sentence_say_so(monkeypatch, capsys, figures, failures):
    result = result_with(**figures)
    monkeypatch.setattr(self_check, "run_self_check", lambda seed: result)
    assert result.passed is not bool(failures)
    assert self_check.main([]) == bool(failures)
    assert capsys.readouterr().out.startswith("variant")
    assert self_check.main(["--json"]) == bool(failures)
    assert json.loads(capsys.readouterr().out)["passed"] is not bool(failures)
    message = f"^the installed code must pass its self-check, got {failures}; reinstall"
    with pytest.raises(RuntimeError, match=message) if failures else nullcontext():
        self_check.require_passed(result.to_dict())


def test_the_seed_reaches_the_check(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(self_check, "run_self_check", lambda seed: seen.append(seed) or result_with())
    self_check.main(["--seed", "7"])
    self_check.main([])
    assert seen == [7, 0]
    with pytest.raises(SystemExit):
        self_check.main(["--seed", "-1"])
    assert "--seed must be at least 0, got -1; give another one" in capsys.readouterr().err
