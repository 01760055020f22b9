"""Plan folds x arms x seeds: the trials that are trained, each with the split of its fold."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from grpo_pipeline.pipelines.experiments.cross_validation.candidates import Settings, trial_arm
from grpo_pipeline.pipelines.experiments.trials.records import (
    Plan,
    Trial,
)
from grpo_pipeline.tasks.folds import ExampleFold, FoldPlan

# fold -> arm -> candidate
Choices = Mapping[str, Mapping[str, str]]


def outer_plan(settings: Settings, plan: FoldPlan, seeds: Sequence[int], choices: Choices) -> Plan:
    """List the trials whose predictions are reported: each arm with its chosen settings, on each fold with each seed.

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
    """List the trials that decide the choice: each arm with each candidate, on each inner fold with each seed."""
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
    """Map example id -> train, val or test; an example that is left out has no entry."""
    return replace(fold, test=(*fold.test, *held_out)).parts()
