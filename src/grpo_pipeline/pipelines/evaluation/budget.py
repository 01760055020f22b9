"""Count the cost of training an arm, and write where an arm and its control had unequal budgets."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

SAMPLES, REWARD_CALLS = "samples", "reward_calls"
# Measured where, and only where, the policy learns from rewards, or the supervised loss reads them.
LEARNS = ("policy/loss", "supervised/reads_rewards")


@dataclass(frozen=True)
class Budget:
    """The cost of a training.

    Attributes:
        steps: number of batches that the arm learned from.
        samples: number of samples drawn for these batches; None where it was not counted.
        reward_calls: number of samples, and parts of samples, whose reward was measured; None where it was not counted.
        learns_from_reward: whether a loss read the rewards at any step.
    """

    steps: int
    samples: int | None
    reward_calls: int | None
    learns_from_reward: bool

    def document(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def read_budget(rows: pd.DataFrame) -> Budget:
    """Count the budget of a training from its metric rows (docs/metrics.md)."""
    train = rows[rows["split"] == "train"] if "split" in rows else rows.iloc[:0]

    def total(name: str) -> int | None:
        if name not in train or train[name].isna().any():
            return None
        return int(train[name].sum())

    is_taught = any(name in train and bool(train[name].notna().any()) for name in LEARNS)
    return Budget(len(train), total(SAMPLES), total(REWARD_CALLS), is_taught)


def mean_budget(budgets: Collection[Budget]) -> Budget:
    """Return the budget of a training on average over seeds and folds, in whole numbers."""

    def mean(counts: Iterable[int | None]) -> int | None:
        known = [count for count in counts if count is not None]
        return round(sum(known) / len(known)) if len(known) == len(budgets) else None

    return Budget(
        mean(one.steps for one in budgets) or 0,
        mean(one.samples for one in budgets),
        mean(one.reward_calls for one in budgets),
        any(one.learns_from_reward for one in budgets),
    )


def budget_sentences(budgets: Mapping[str, Budget], *, control: str) -> list[str]:
    """Write which arms had another budget than the control; empty where all budgets are equal or unknown."""
    if control not in budgets:
        return []
    theirs, unequal = budgets[control], []
    for arm, budget in budgets.items():
        parts = [
            f"{count:,} {what} against {other:,}"
            for what, count, other in (
                ("steps", budget.steps, theirs.steps),
                ("samples", budget.samples, theirs.samples),
                ("reward calls", budget.reward_calls, theirs.reward_calls),
            )
            if count is not None and other is not None and count != other
        ]
        if parts:
            unequal.append(f"{arm} had {', '.join(parts)}")
    if not unequal:
        return []
    longer = any(budget.steps > theirs.steps for budget in budgets.values())
    ending = ": more steps alone may explain a difference" if longer else ""
    return [f"Unequal training: {'; '.join(unequal)} of the control {control}{ending}."]
