"""The candidate settings of each arm: resolve them before anything is trained, and choose inside each outer fold.

The choice is made by the inner folds alone (nested cross-validation).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from grpo_pipeline.pipelines.arms import merge
from grpo_pipeline.pipelines.experiments.trials.arms import (
    ArmParams,
    GridParams,
    ResolvedArm,
    Sections,
    resolve_arms,
)
from grpo_pipeline.pipelines.experiments.trials.records import (
    CompareError,
    Plan,
    Trial,
    TrialHeader,
)
from grpo_pipeline.pipelines.params import CrossValidationParams
from grpo_pipeline.statistics.metric import Direction, MetricSuite
from grpo_pipeline.tasks.folds import ExampleFold, FoldPlan

PLAIN = ""
REWARD = "reward"  # the metric


@dataclass(frozen=True)
class Settings:
    """The settings that may be trained.

    Attributes:
        task: name of the task.
        arms: arm -> candidate -> resolved arm; the control first. Without candidates the only one is ``PLAIN``.
    """

    task: str
    arms: Mapping[str, Mapping[str, ResolvedArm]]

    @property
    def resolved(self) -> dict[str, ResolvedArm]:
        """Name of the trials -> resolved arm: ``grpo``, or ``grpo.wide`` with the candidate ``wide``."""
        return {
            trial_arm(arm, name): one
            for arm, found in self.arms.items()
            for name, one in found.items()
        }


def trial_arm(arm: str, candidate: str) -> str:
    """Return the name under which an arm with a candidate's settings is trained."""
    return arm if candidate == PLAIN else f"{arm}.{candidate}"


def resolve_settings(
    params: CrossValidationParams, parameters: Mapping[str, Any], *, task: str, models: Sections
) -> Settings:
    """Return every arm with every candidate, each with its sections merged and validated.

    Args:
        params: arms and candidates.
        parameters: the task's parameters as they are in YAML.
        task: name of the task.
        models: section of the task -> its model.

    Raises:
        ValueError: naming the arm (``grpo.wide`` is grpo with the candidate wide) and the path of what is wrong.
    """
    candidates = params.candidates or {PLAIN: {}}
    found: dict[str, dict[str, ResolvedArm]] = {}
    for name, changes in candidates.items():
        changed = {
            arm: described.model_copy(update={"set": merge(described.set, changes)})
            for arm, described in params.present.items()
        }
        for arm, one in _resolve(
            params, changed, name, parameters, task=task, models=models
        ).items():
            found.setdefault(arm, {})[name] = one
    return Settings(task, found)


def check_metrics(params: CrossValidationParams, suite: MetricSuite, *, task: str) -> None:
    """Raise ValueError if a metric or a rule is unknown to the task, or the deciding metric has no good side."""
    where = f"{task}.cross_validation"
    suite = suite.for_names((*params.primary_metrics, params.selection_metric))
    for path, name in [
        *(("primary_metrics", name) for name in params.primary_metrics),
        ("selection_metric", params.selection_metric),
    ]:
        if name not in suite.metrics:
            raise ValueError(
                f"{where}.{path} must be among {', '.join(suite.metrics)}, got {name!r}; correct it"
            )
    if suite.metrics[params.selection_metric].better == "none":
        raise ValueError(
            f"{where}.selection_metric must be a metric with a good side, got {params.selection_metric!r}; "
            "take one with an arrow in docs/metrics.md"
        )
    for name, arm in params.present.items():
        if arm.rule not in suite.rules:
            raise ValueError(
                f"{where}.arms.{name}.rule must be among {', '.join(suite.rules)}, got {arm.rule!r}; correct it"
            )


def check_reward(
    params: CrossValidationParams, settings: Settings, *, task: str, section: str
) -> None:
    """Raise ValueError if rewards of different make would be compared: the column ``reward`` has each arm's own weights."""
    arms = settings.resolved
    first = next(iter(arms.values())).parameters.get(section)
    other = [name for name, arm in arms.items() if arm.parameters.get(section) != first]
    deciding = (params.selection_metric,) if params.candidates else ()
    if other and REWARD in (*params.primary_metrics, *deciding):
        field = "primary_metrics" if REWARD in params.primary_metrics else "selection_metric"
        raise ValueError(
            f"{task}.cross_validation.{field} must not be or hold {REWARD!r} where arms weigh its parts differently, got it with "
            f"{other[0]}; name a part, such as reward_class, that means the same in every arm"
        )


def _resolve(
    params: CrossValidationParams,
    changed: Mapping[str, ArmParams],
    candidate: str,
    parameters: Mapping[str, Any],
    *,
    task: str,
    models: Sections,
) -> dict[str, ResolvedArm]:
    """Resolve the arms with one candidate's changes."""
    grid = GridParams(
        seeds=params.seeds, control=params.control, arms=dict(changed), keep=params.keep
    )
    section = (
        "cross_validation" if candidate == PLAIN else f"cross_validation.candidates.{candidate}"
    )
    return resolve_arms(grid, parameters, task=task, models=models, section=section)


# Folds x arms x seeds -> the trials that are trained, each with the split of its fold.

# fold -> arm -> candidate
Choices = Mapping[str, Mapping[str, str]]


def outer_plan(settings: Settings, plan: FoldPlan, seeds: Sequence[int], choices: Choices) -> Plan:
    """Return the trials whose predictions are reported: each arm with its chosen settings, on each fold with each seed.

    The examples that are held out are predicted with those of the test fold: they are in no fold's train or val.
    """
    trials = [
        Trial(
            trial_arm(arm, choices[fold.name][arm]),
            seed,
            str(number),
            split_of(fold, plan.held_out),
        )
        for seed in seeds
        for number, fold in enumerate(plan.folds)
        for arm in settings.arms
    ]
    return Plan(settings.task, settings.resolved, tuple(trials))


def inner_plan(settings: Settings, plan: FoldPlan, seeds: Sequence[int]) -> Plan:
    """Return the trials that settings are chosen by: each arm with each candidate, on each inner fold with each seed."""
    trials = [
        Trial(trial_arm(arm, candidate), seed, fold, split_of(inner, ()))
        for seed in seeds
        for _, fold, inner in inner_folds(plan)
        for arm, candidates in settings.arms.items()
        for candidate in candidates
    ]
    return Plan(settings.task, settings.resolved, tuple(trials))


def inner_folds(plan: FoldPlan) -> Iterator[tuple[ExampleFold, str, ExampleFold]]:
    """Yield (outer fold, name of the trials' fold, inner fold)."""
    for number, outer in enumerate(plan.folds):
        for position, inner in enumerate(outer.inner):
            yield outer, f"{number}.inner{position}", inner


def split_of(fold: ExampleFold, held_out: Sequence[str]) -> Mapping[str, str]:
    """Return example id -> train, val or test; an example that is left out is in none."""
    return replace(fold, test=(*fold.test, *held_out)).parts()


# candidate -> its values, one per pair of seed and inner fold; NaN where undefined, None for a candidate with a failed trial
Values = dict[str, list[float] | None]


@dataclass(frozen=True)
class Choice:
    """The setting that was chosen for one arm inside one outer fold, and by which score.

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
    """Return the arms as they are, for every fold."""
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
    """Return for each outer fold and arm the candidate with the best mean over its seeds and inner folds.

    Candidates are compared on the same pairs of seed and inner fold: one that leaves the metric undefined for a candidate
    is left out for all. A candidate with a failed trial cannot be chosen; of equal ones the first is.

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
    """Return the choice of one arm inside one outer fold."""
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
