"""Out-of-fold predictions -> the document of docs/cross_validation.md."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from grpo_pipeline.pipelines.cross_validation.choice import Choice, documents
from grpo_pipeline.pipelines.cross_validation.out_of_fold import BySeed, OutOfFold
from grpo_pipeline.pipelines.cross_validation.params import CrossValidationParams
from grpo_pipeline.pipelines.cross_validation.scores import (
    KINDS,
    Resamples,
    Score,
    score_arms,
    score_folds,
    score_held_out,
    score_tested,
    sections,
)
from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.tasks.attention.folds import FoldPlan
from grpo_pipeline.tasks.metric import MetricSuite


def build_document(
    rows: OutOfFold,
    plan: FoldPlan,
    choices: Sequence[Choice],
    params: CrossValidationParams,
    evaluation: EvaluationParams,
    *,
    suite: MetricSuite,
) -> dict[str, Any]:
    """Score the out-of-fold rows, and where there are held-out cores the models on them.

    Every arm, seed and fold is read on the same resamples of whole patients; differences are taken inside each resample.
    """
    control = next(iter(rows.tested))
    cores = first_rows(rows.tested)
    out_of_fold = section(rows.tested, control, evaluation, suite=suite, score=score_tested)
    return {
        "task": evaluation.task,
        "scheme": params.scheme,
        "control": control,
        "headline": next(iter(KINDS)),
        "primary_metrics": list(params.primary_metrics),
        "n": counts(cores, evaluation) | {"folds": len(plan.folds)},
        "seeds": {arm: sorted(by_seed) for arm, by_seed in rows.tested.items()},
        "interval": {"method": "percentile bootstrap of whole clusters", "level": 0.95, "resamples": evaluation.resamples},
        "folds": [describe_fold(fold.name, fold.train, fold.val, cores) for fold in plan.folds],
        **out_of_fold,
        "spread": score_folds(rows, suite),
        "held_out": held_out(rows, control, evaluation, suite=suite),
        "choices": documents(choices),
        "missing": dict(rows.missing),
    }


def section(
    arms: Mapping[str, BySeed], control: str, evaluation: EvaluationParams, *, suite: MetricSuite, score: Score
) -> dict[str, Any]:
    """Return values and differences of the arms that have a complete seed."""
    complete = {arm: by_seed for arm, by_seed in arms.items() if by_seed}
    resamples = Resamples.draw(first_rows(complete), evaluation)
    scores = score_arms(complete, suite, resamples, score)
    return sections(scores, control, evaluation, clusters=len(resamples.positions))


def held_out(rows: OutOfFold, control: str, evaluation: EvaluationParams, *, suite: MetricSuite) -> dict[str, Any] | None:
    """Return what the folds' models say about the held-out cores, on which nothing was chosen; None without any."""
    if not rows.held_out:
        return None
    cores = first_rows(rows.held_out).drop_duplicates("core_id")
    return {"n": counts(cores, evaluation), **section(rows.held_out, control, evaluation, suite=suite, score=score_held_out)}


def first_rows(arms: Mapping[str, BySeed]) -> pd.DataFrame:
    """Return the rows of the first arm that has some: cores, labels and clusters are those of all."""
    return next(part for by_seed in arms.values() for part in by_seed.values())


def counts(rows: pd.DataFrame, evaluation: EvaluationParams) -> dict[str, Any]:
    """Return the number of cores and of their clusters."""
    return {"examples": len(rows), "clusters": int(rows[evaluation.cluster].nunique()), "cluster": evaluation.cluster}


def describe_fold(name: str, train: Sequence[str], val: Sequence[str], cores: pd.DataFrame) -> dict[str, Any]:
    """Return the size of a fold's parts; a test part with a single class says nothing about a ranking."""
    labels = cores.loc[cores["fold"] == name, "label"]
    return {
        "name": name,
        "train": len(train),
        "val": len(val),
        "test": len(labels),
        "test_positives": int(labels.sum()),
        "single_class": bool(labels.nunique() < 2),
    }
