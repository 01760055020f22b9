"""The self-check passes on the installed code, and fails on code that is broken on purpose."""

import json
import resource
import subprocess
import sys

import pytest

from grpo_pipeline.core import self_check
from grpo_pipeline.core.diagnostics import bandit, set_bandit
from grpo_pipeline.core.policy_gradient import advantages
from grpo_pipeline.core.sampling import plackett_luce
from grpo_pipeline.core.self_check import Check, SelfCheckError, SelfCheckResult, VariantResult

SOUND = {"grpo", "reinforce", "analytic_entropy", "sets_of_three"}
DEFECTS = {
    "resampled_actions", "flipped_sign", "misplaced_advantages", "pseudo_entropy", "independent_draws", "baseline_of_the_batch",
}  # fmt: skip
# What a defect of sets fails: the other figure of the two does not depend on it, or hardly.
FAILED_BY = {"independent_draws": "likelihood_mass", "baseline_of_the_batch": "set_gradient_cosine"}


@pytest.mark.slow
def test_the_command_passes_sound_code_and_fails_each_defect_where_it_touches_a_figure():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "grpo_pipeline.core.self_check", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20
    result = json.loads(done.stdout)
    assert (result["passed"], result["seed"]) == (True, 0)
    assert result["setting"] == {"prompts": 8, "cells": 64, "good_cells": 8, "group_size": 4}
    variants = result["variants"]
    assert {name: variant["is_defect"] for name, variant in variants.items()} == dict.fromkeys(SOUND, False) | dict.fromkeys(
        DEFECTS, True
    )
    for name, variant in variants.items():
        assert variant["is_as_wanted"]
        outcomes = {check: figure["passed"] for check, figure in variant["checks"].items()}
        wanted = {"gradient_cosine", "hit_rate", "best_logprob_gain"}
        if "entropy" in name:
            wanted = {"entropy_gradient_cosine", "entropy_gain"}
        if name in {"sets_of_three", *FAILED_BY}:
            assert outcomes == {check: FAILED_BY.get(name) != check for check in ("likelihood_mass", "set_gradient_cosine")}
        else:
            assert outcomes == dict.fromkeys(wanted, not variant["is_defect"]), name
    assert all(variants[name]["steps"] < 400 for name in ("grpo", "reinforce"))


def test_installed_code_with_a_defect_fails(monkeypatch):
    sound = bandit.surrogate
    monkeypatch.setattr(bandit, "surrogate", lambda algorithm: bandit.flipped(sound(algorithm)))
    found = self_check.check_policy("grpo", bandit.surrogate("grpo"), seed=0, steps=60)
    assert not found.is_as_wanted
    assert not any(check.passed for check in found.checks)


def test_an_installed_baseline_of_the_whole_batch_fails(monkeypatch):
    def over_the_batch(r, is_scored, values):
        return r.nanmean().expand(len(r), 1)

    monkeypatch.setattr(advantages, "_baseline", over_the_batch)
    assert not self_check.check_sets("sets_of_three", seed=0).is_as_wanted


def test_an_installed_likelihood_of_independent_draws_fails(monkeypatch):
    def of_all(z, z_taken, is_taken):
        return z.logsumexp(-1)[:, None, None].expand_as(z_taken)

    monkeypatch.setattr(plackett_luce, "log_remaining", of_all)
    assert not self_check.check_sets("sets_of_three", seed=0).is_as_wanted


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
    def check(value):
        return (Check("hit_rate", value, 0.98), Check("gradient_cosine", 1.0, 0.99))

    return SelfCheckResult(
        seed=3,
        variants=(
            VariantResult("grpo", False, check(sound), steps=40),
            VariantResult("flipped_sign", True, check(defect), steps=400),
        ),
    )


@pytest.mark.parametrize(
    ("figures", "passed"),
    [
        ({}, True),
        ({"sound": 0.98}, True),
        ({"sound": 0.979}, False),
        ({"sound": float("nan")}, False),
        ({"defect": 1.0}, False),
        ({"defect": float("nan")}, True),
    ],
)
def test_passed_means_that_sound_code_passes_and_defects_fail(figures, passed):
    assert result_with(**figures).passed is passed


def test_a_failure_is_one_sentence():
    self_check.require_passed(result_with().to_dict())
    with pytest.raises(SelfCheckError, match=r"^the installed code must pass its self-check, got grpo: DOES NOT LEARN; reinst"):
        self_check.require_passed(result_with(sound=0.5).to_dict())
    with pytest.raises(SelfCheckError, match=r"got grpo: DOES NOT LEARN; flipped_sign: DEFECT THAT PASSED; reinstall"):
        self_check.require_passed(result_with(sound=0.5, defect=1.0).to_dict())
    assert issubclass(SelfCheckError, RuntimeError)


@pytest.mark.parametrize(("figures", "status"), [({}, 0), ({"sound": 0.5}, 1), ({"defect": 1.0}, 1)])
def test_the_exit_status_is_the_outcome(monkeypatch, capsys, figures, status):
    monkeypatch.setattr(self_check, "run_self_check", lambda seed: result_with(**figures))
    assert self_check.main([]) == status
    assert capsys.readouterr().out.startswith("variant")
    assert self_check.main(["--json"]) == status
    assert json.loads(capsys.readouterr().out)["passed"] is (status == 0)


def test_the_seed_reaches_the_check(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(self_check, "run_self_check", lambda seed: seen.append(seed) or result_with())
    self_check.main(["--seed", "7"])
    self_check.main([])
    assert seen == [7, 0]
    with pytest.raises(SystemExit):
        self_check.main(["--seed", "-1"])
    assert "--seed must be at least 0, got -1; give another one" in capsys.readouterr().err
