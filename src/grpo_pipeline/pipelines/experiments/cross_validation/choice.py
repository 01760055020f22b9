"""Choose a candidate of each arm inside each outer fold.

The choice is made by the inner folds alone (nested cross-validation).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grpo_pipeline.pipelines.experiments.cross_validation.candidates import (
    PLAIN,
    Settings,
    trial_arm,
)
from grpo_pipeline.pipelines.experiments.cross_validation.fold_plan import inner_folds
from grpo_pipeline.pipelines.experiments.trials.records import (
    CompareError,
    TrialHeader,
)
from grpo_pipeline.statistics.metric import Direction
from grpo_pipeline.tasks.folds import ExampleFold, FoldPlan

# candidate -> its values, one per pair of seed and inner fold; NaN where undefined, None for a candidate with a failed trial
Values = dict[str, list[float] | None]


@dataclass(frozen=True)
class Choice:
    """The setting that was chosen for an arm inside an outer fold, with the scores of all candidates.

    Attributes:
        fold: the outer fold.
        arm: the arm.
        chosen: name of the candidate.
        means: candidate -> mean of the metric; None for a candidate with a failed trial.
        n: number of pairs of seed and inner fold that the means are over.
    """

    fold: str
    arm: str
    chosen: str
    means: Mapping[str, float | None]
    n: int


def nothing_to_choose(settings: Settings, plan: FoldPlan) -> dict[str, dict[str, str]]:
    """Return the arms unchanged, for every fold."""
    return {fold.name: dict.fromkeys(settings.arms, PLAIN) for fold in plan.folds}


def choose(
    settings: Settings,
    plan: FoldPlan,
    headers: Mapping[str, TrialHeader],
    *,
    seeds: Sequence[int],
    metric: str,
    better: Direction,
) -> list[Choice]:
    """Choose, for each outer fold and arm, the candidate with the best mean over its seeds and inner folds.

    Candidates are compared on the same pairs of seed and inner fold. If the metric is undefined for a candidate on a pair, the
    pair is left out for all candidates. A candidate with a failed trial cannot be chosen; of equal candidates the first is
    chosen.

    Raises:
        CompareError: if no candidate can be chosen.
    """
    found = []
    for outer in plan.folds:
        folds = [name for other, name, _ in inner_folds(plan) if other is outer]
        for arm, candidates in settings.arms.items():
            # Candidate -> one value per seed and inner fold; None if one of its trials did not finish.
            values: dict[str, list[float] | None] = {}
            for name in candidates:
                own = trial_arm(arm, name)
                keys = [f"{own}.seed{seed}.fold{fold}" for seed in seeds for fold in folds]
                trials = [headers[key] for key in keys if key in headers]
                is_whole = [trial.status for trial in trials] == ["finished"] * len(keys)
                reached = [trial.metrics.get(metric, float("nan")) for trial in trials]
                values[name] = reached if is_whole else None
            found.append(choose_one(values, outer, arm, metric=metric, better=better))
    return found


def choose_one(
    values: Values, outer: ExampleFold, arm: str, *, metric: str, better: Direction
) -> Choice:
    """Choose the candidate of an arm inside an outer fold."""
    finished = {name: np.array(numbers) for name, numbers in values.items() if numbers is not None}
    where = f"the candidates of {arm} inside {outer.name!r}"
    if not finished:
        raise CompareError(
            f"{where} must hold one whose inner trials have all finished, got none; look at the failed trials"
        )
    shared = np.isfinite(np.stack(list(finished.values()))).all(axis=0)
    if not shared.any():
        raise CompareError(
            f"{where} must have an inner fold in which {metric} is defined for all of them, got none; "
            "use fewer inner_folds or another selection_metric"
        )
    means = {name: float(numbers[shared].mean()) for name, numbers in finished.items()}
    best = max(means.values()) if better == "higher" else min(means.values())
    chosen = next(name for name, mean in means.items() if mean == best)
    return Choice(
        outer.name, arm, chosen, {name: means.get(name) for name in values}, int(shared.sum())
    )


def by_fold(choices: Sequence[Choice]) -> dict[str, dict[str, str]]:
    """Return fold -> arm -> candidate."""
    table: dict[str, dict[str, str]] = {}
    for choice in choices:
        table.setdefault(choice.fold, {})[choice.arm] = choice.chosen
    return table


def documents(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """Return the choices for JSON."""
    return [asdict(choice) for choice in choices]
