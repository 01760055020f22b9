"""Build the document of docs/cross_validation.md from predictions out of fold."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from grpo_pipeline.pipelines.evaluation.budget import budget_sentences
from grpo_pipeline.pipelines.experiments.compare.document import check_measured
from grpo_pipeline.pipelines.experiments.cross_validation.choice import Choice, documents
from grpo_pipeline.pipelines.experiments.cross_validation.out_of_fold import (
    BySeed,
    OutOfFold,
)
from grpo_pipeline.pipelines.experiments.cross_validation.out_of_fold_scores import (
    KINDS,
    Resamples,
    Score,
    Scores,
    counts,
    score_folds,
    score_held_out,
    score_tested,
)
from grpo_pipeline.pipelines.params import CrossValidationParams, EvaluationParams
from grpo_pipeline.statistics.alignment import digest_of_units
from grpo_pipeline.statistics.bootstrap import Estimate
from grpo_pipeline.statistics.metric import MetricSuite
from grpo_pipeline.statistics.over_seeds import describe_seeds, differences_by_seed
from grpo_pipeline.tasks.folds import FoldPlan


def score_arms(
    arms: Mapping[str, BySeed], suite: MetricSuite, resamples: Resamples, score: Score
) -> Scores:
    """Score every arm, metric and seed on the same resamples."""
    found: Scores = {}
    for arm, by_seed in arms.items():
        for seed, rows in by_seed.items():
            for name, kinds in score(rows, suite.metrics, resamples).items():
                for kind, value in kinds.items():
                    found.setdefault(arm, {}).setdefault(name, {}).setdefault(kind, {})[seed] = (
                        value
                    )
    return found


def sections(scores: Scores, control: str, params: EvaluationParams) -> dict[str, Any]:
    """Return ``arms`` and ``differences``: metric -> kind -> value, interval and n, each the mean over the seeds."""

    def entry(by_seed: Mapping[int, Estimate]) -> dict[str, Any]:
        return describe_seeds(by_seed, resamples=params.resamples)

    def gap(name: str, kind: str, kinds: Mapping[str, dict[int, Estimate]]) -> dict[str, Any]:
        found = entry(differences_by_seed(kinds[kind], scores[control][name][kind]))
        return {key: value for key, value in found.items() if key != "n"}

    return {
        "arms": {
            arm: {
                "metrics": {
                    name: {kind: entry(one) for kind, one in kinds.items()}
                    for name, kinds in metrics.items()
                }
            }
            for arm, metrics in scores.items()
        },
        "differences": {
            arm: {
                name: {kind: gap(name, kind, kinds) for kind in kinds}
                for name, kinds in metrics.items()
            }
            for arm, metrics in scores.items()
            if arm != control
        },
    }


def build_document(
    rows: OutOfFold,
    plan: FoldPlan,
    choices: Sequence[Choice],
    params: CrossValidationParams,
    evaluation: EvaluationParams,
    *,
    suite: MetricSuite,
) -> dict[str, Any]:
    """Score the out-of-fold rows, and the folds' models on the held-out examples if there are any.

    Every arm, seed and fold is read on the same resamples of whole clusters; differences are taken inside each resample.

    Raises:
        CompareError: if no fold measured a primary metric.
    """
    control = next(iter(rows.tested))
    examples = first_rows(rows.tested)
    tested = (part for by_seed in rows.tested.values() for part in by_seed.values())
    suite = suite.for_names(dict.fromkeys(name for part in tested for name in part.columns))
    check_measured(params.primary_metrics, suite, where=f"{evaluation.task}.cross_validation")
    out_of_fold = section(rows.tested, control, evaluation, suite=suite, score=score_tested)
    return {
        "task": evaluation.task,
        "scheme": params.scheme,
        "control": control,
        "headline": next(iter(KINDS)),
        "primary_metrics": list(params.primary_metrics),
        "n": counts(examples, evaluation)
        | {
            "folds": len(plan.folds),
            "digest": digest_of_units(examples, unit=suite.unit, cluster=evaluation.cluster),
        },
        "seeds": {arm: sorted(by_seed) for arm, by_seed in rows.tested.items()},
        "interval": {
            "method": "percentile bootstrap of whole clusters",
            "level": 0.95,
            "resamples": evaluation.resamples,
        },
        "folds": [describe_fold(fold.name, fold.train, fold.val, examples) for fold in plan.folds],
        **out_of_fold,
        "spread": score_folds(rows, suite),
        "held_out": held_out(rows, control, evaluation, suite=suite),
        "choices": documents(choices),
        "missing": dict(rows.missing),
        "notes": missing_sentences(rows.missing),
        "training": {arm: budget.document() for arm, budget in rows.budgets.items()},
        "summary": budget_sentences(rows.budgets, control=control),
    }


def missing_sentences(missing: Mapping[str, str]) -> list[str]:
    """Write which trials are missing, and which folds are left out with them."""
    return [
        f"{key} is missing, and with it the other folds of its arm and seed: {reason}"
        for key, reason in missing.items()
    ]


def section(
    arms: Mapping[str, BySeed],
    control: str,
    evaluation: EvaluationParams,
    *,
    suite: MetricSuite,
    score: Score,
) -> dict[str, Any]:
    """Return values and differences of the arms that have a complete seed."""
    complete = {arm: by_seed for arm, by_seed in arms.items() if by_seed}
    resamples = Resamples.draw(first_rows(complete), evaluation)
    scores = score_arms(complete, suite, resamples, score)
    return sections(scores, control, evaluation)


def held_out(
    rows: OutOfFold, control: str, evaluation: EvaluationParams, *, suite: MetricSuite
) -> dict[str, Any] | None:
    """Score the folds' models on the held-out examples, on which nothing was chosen; None without such examples."""
    if not rows.held_out:
        return None
    examples = first_rows(rows.held_out).drop_duplicates(suite.unit.column)
    score = partial(score_held_out, key=suite.unit.column)
    return {
        "n": counts(examples, evaluation),
        **section(rows.held_out, control, evaluation, suite=suite, score=score),
    }


def first_rows(arms: Mapping[str, BySeed]) -> pd.DataFrame:
    """Find the rows of the first arm that has rows: examples, labels and clusters are the same for all arms."""
    return next(part for by_seed in arms.values() for part in by_seed.values())


def describe_fold(
    name: str, train: Sequence[str], val: Sequence[str], examples: pd.DataFrame
) -> dict[str, Any]:
    """Describe the size of a fold's parts; a note marks a test part with a single class, which cannot test a ranking."""
    tested = examples[examples["fold"] == name]
    labels = tested.get("label")
    # Labels of any kind are allowed; two classes are 0 and 1.
    is_binary = labels is not None and set(labels.dropna()) <= {0, 1}
    return {
        "name": name,
        "train": len(train),
        "val": len(val),
        "test": len(tested),
        "test_positives": int(labels.sum()) if labels is not None and is_binary else None,
        "single_class": labels is not None and is_binary and bool(labels.nunique() < 2),
    }
