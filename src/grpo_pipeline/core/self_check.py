"""Check in seconds that the installed code learns from reward: ``python -m grpo_pipeline.core.self_check``.

On the bandit of ``bandit`` the functions that train every task (sampling, advantages, policy loss, entropy, update) must
follow the enumerated gradient, find the good cells and raise the entropy; on the one of ``set_bandit``, whose samples are
three decisions, likelihood and gradient must be those of whole sets. Beside them the same checks are run on six defects that are
common in public code; a check that no defect fails would say nothing, so each defect has to fail one.

How this differs from a unit test: it runs where the package is installed, on its versions of torch and Python.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from grpo_pipeline.core.diagnostics import bandit, set_bandit
from grpo_pipeline.core.diagnostics.bandit import Bonus, Objective
from grpo_pipeline.core.sampling.plackett_luce import independent_logprobs, plackett_luce_logprobs

STEPS, UPDATE_EPOCHS = 400, 4
WANTED = {
    "gradient_cosine": 0.99,
    "hit_rate": 0.98,
    "best_logprob_gain": 0.01,
    "entropy_gradient_cosine": 0.99,
    "entropy_gain": 0.5,
    "likelihood_mass": 1.0 - 1e-9,
    "set_gradient_cosine": 0.98,
    "loop_likelihood": 1.0 - 1e-9,
    "loop_gradient_cosine": 0.98,
    "loop_hit_rate": 0.9,
}
ROW = "{:<22}{:<25}{:>9}  {:<9}{:<8}{}"


class SelfCheckError(RuntimeError):
    """The installed code does not learn from reward, or a defect passed the check."""


@dataclass(frozen=True)
class Check:
    """One figure and what it must reach.

    Attributes:
        name: a key of ``WANTED``.
        value: what was measured.
        at_least: the threshold.
    """

    name: str
    value: float
    at_least: float

    @property
    def passed(self) -> bool:
        """Whether the threshold is reached; NaN never does."""
        return self.value >= self.at_least


@dataclass(frozen=True)
class VariantResult:
    """Result of one variant of the code in the self-check.

    Attributes:
        name: the algorithm, or the defect.
        is_defect: whether the checks must fail.
        checks: one for each figure.
        steps: batches used in training.
    """

    name: str
    is_defect: bool
    checks: tuple[Check, ...]
    steps: int

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def is_as_wanted(self) -> bool:
        """Whether sound code passed, or a defect was caught."""
        return self.passed != self.is_defect


@dataclass(frozen=True)
class SelfCheckResult:
    """All variants of one self-check.

    Attributes:
        seed: of the samples.
        variants: sound ones first.
    """

    seed: int
    variants: tuple[VariantResult, ...]

    @property
    def passed(self) -> bool:
        """Whether all sound variants pass and all defects are caught."""
        return all(variant.is_as_wanted for variant in self.variants)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; a figure that is NaN or infinite is None."""
        setting = {
            "prompts": bandit.PROMPTS,
            "cells": bandit.CELLS,
            "good_cells": bandit.GOOD,
            "group_size": bandit.GROUP,
        }
        variants = {variant.name: _variant_dict(variant) for variant in self.variants}
        return {"passed": self.passed, "seed": self.seed, "setting": setting, "variants": variants}


def run_self_check(seed: int = 0, *, steps: int = STEPS) -> SelfCheckResult:
    """Run every variant of the code through its checks; about ten seconds on one CPU core.

    Args:
        seed: of all samples, at least 0.
        steps: batches in which the policy must find the good cells.

    Raises:
        NonFiniteGradientError: if the installed code yields a gradient that is NaN or infinite.
        ValueError: if the seed is negative.
    """
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}; give another one")
    with _one_thread():
        return _run_variants(seed, steps)


def _run_variants(seed: int, steps: int) -> SelfCheckResult:
    grpo, reinforce = bandit.surrogate("grpo"), bandit.surrogate("reinforce")
    sound = (
        check_policy("grpo", grpo, seed=seed, steps=steps),
        check_policy("reinforce", reinforce, seed=seed, steps=steps, update_epochs=1),
        check_bonus("analytic_entropy", bandit.analytic_bonus, seed=seed),
        check_sets("sets_of_three", seed=seed),
    )
    defects = (
        check_policy(
            "resampled_actions", bandit.resampled(grpo), seed=seed, steps=steps, is_defect=True
        ),
        check_policy("flipped_sign", bandit.flipped(grpo), seed=seed, steps=steps, is_defect=True),
        check_policy(
            "misplaced_advantages", bandit.misplaced(grpo), seed=seed, steps=steps, is_defect=True
        ),
        check_bonus("pseudo_entropy", bandit.pseudo_bonus, seed=seed, is_defect=True),
        check_sets("independent_draws", seed=seed, likelihood=independent_logprobs, is_defect=True),
        check_sets(
            "baseline_of_the_batch", seed=seed, compare=set_bandit.batch_advantages, is_defect=True
        ),
    )
    return SelfCheckResult(seed=seed, variants=sound + defects)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: on tensors this small, more of them wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def as_checks(measured: Mapping[str, float]) -> tuple[Check, ...]:
    """Return the figures with what they must reach."""
    return tuple(Check(name, value, WANTED[name]) for name, value in measured.items())


def check_policy(
    name: str,
    objective: Objective,
    *,
    seed: int,
    steps: int = STEPS,
    update_epochs: int = UPDATE_EPOCHS,
    is_defect: bool = False,
) -> VariantResult:
    """Check one objective: its gradient, its first step, and what it learns in ``steps`` batches."""
    reached, used = bandit.train(
        objective, seed=seed, steps=steps, update_epochs=update_epochs, until=WANTED["hit_rate"]
    )
    measured = {
        "gradient_cosine": bandit.gradient_cosine(objective, seed=seed),
        "hit_rate": reached,
        "best_logprob_gain": bandit.best_logprob_gain(objective, seed=seed),
    }
    return VariantResult(name, is_defect, as_checks(measured), steps=used)


def check_bonus(name: str, bonus: Bonus, *, seed: int, is_defect: bool = False) -> VariantResult:
    """Check one entropy bonus: its gradient, and what it does to the entropy by itself."""
    measured = {
        "entropy_gradient_cosine": bandit.bonus_gradient_cosine(bonus, seed=seed),
        "entropy_gain": bandit.entropy_gain(bonus, seed=seed),
    }
    return VariantResult(name, is_defect, as_checks(measured), steps=bandit.ENTROPY_STEPS)


def check_sets(
    name: str,
    *,
    seed: int,
    likelihood: set_bandit.Likelihood = plackett_luce_logprobs,
    compare: set_bandit.Compare = set_bandit.group_advantages,
    is_defect: bool = False,
) -> VariantResult:
    """Check samples of several decisions: their likelihood, and the gradient of an update that compares within groups."""
    measured = {
        "likelihood_mass": set_bandit.likelihood_mass(seed=seed, likelihood=likelihood),
        "set_gradient_cosine": set_bandit.gradient_cosine(
            seed=seed, likelihood=likelihood, compare=compare
        ),
    }
    return VariantResult(name, is_defect, as_checks(measured), steps=set_bandit.DRAWS)


def format_table(result: Mapping[str, Any]) -> str:
    """Return what ``SelfCheckResult.to_dict`` holds as a text table, one line for each check."""
    lines = [ROW.format("variant", "check", "value", "wanted", "result", "")]
    for name, variant in result["variants"].items():
        notes = [summary(variant), f"{variant['steps']} batches"]
        for row, (check, figure) in enumerate(variant["checks"].items()):
            value = "-" if figure["value"] is None else f"{figure['value']:.4f}"
            outcome, note = (
                "passed" if figure["passed"] else "failed",
                notes[row] if row < len(notes) else "",
            )
            wanted = f">= {figure['at_least']:g}"
            lines.append(
                ROW.format("" if row else name, check, value, wanted, outcome, note).rstrip()
            )
    lines.append(f"self-check {'passed' if result['passed'] else 'FAILED'}, seed {result['seed']}")
    return "\n".join(lines)


def summary(variant: Mapping[str, Any]) -> str:
    """Return what the checks of one variant say about it."""
    if variant["is_defect"]:
        return "defect, caught" if variant["is_as_wanted"] else "DEFECT THAT PASSED"
    return "sound" if variant["is_as_wanted"] else "DOES NOT LEARN"


def require_passed(result: Mapping[str, Any]) -> None:
    """Stop if a self-check did not pass.

    Raises:
        SelfCheckError: naming the variants that did not do as they must.
    """
    odd = [
        f"{name}: {summary(variant)}"
        for name, variant in result["variants"].items()
        if not variant["is_as_wanted"]
    ]
    if not result["passed"]:
        raise SelfCheckError(
            f"the installed code must pass its self-check, got {'; '.join(odd)}; reinstall the pinned versions, or undo the "
            "last change to core"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the self-check from the command line; return 0 if it passed, 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m grpo_pipeline.core.self_check",
        description="Prove that the installed code learns from reward.",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all samples")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args(arguments)
    if options.seed < 0:
        parser.error(f"--seed must be at least 0, got {options.seed}; give another one")
    result = run_self_check(options.seed).to_dict()
    print(json.dumps(result, indent=2, allow_nan=False) if options.json else format_table(result))
    return 0 if result["passed"] else 1


def _variant_dict(variant: VariantResult) -> dict[str, Any]:
    checks = {
        check.name: {
            "value": check.value if math.isfinite(check.value) else None,
            "at_least": check.at_least,
            "passed": check.passed,
        }
        for check in variant.checks
    }
    return {
        "is_defect": variant.is_defect,
        "is_as_wanted": variant.is_as_wanted,
        "passed": variant.passed,
        "steps": variant.steps,
        "checks": checks,
    }


if __name__ == "__main__":
    sys.exit(main())
