"""Build the comparison document of docs/metrics.md from the prediction tables of all arms."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.statistics.alignment import Rules, align_arms, check_same_units, split_rules
from grpo_pipeline.statistics.bootstrap import (
    NOT_COVERED,
    Estimate,
    cluster_weights,
    describe,
    few_clusters_reason,
    paired_difference,
)
from grpo_pipeline.statistics.metric import ASKED, UNSCORED, Metric, MetricSuite
from grpo_pipeline.statistics.wording import (
    bar_sentence,
    baseline_sentences,
    change_sentences,
    few_clusters_sentences,
    judge_bar,
    verdicts,
)

# Count the samples for which a user's reward gave no value, per arm and component, and say it: no other result shows it.

Unscored = dict[str, dict[str, dict[str, dict[str, float]]]]


def count_unscored(
    arms: Mapping[str, pd.DataFrame], training: Mapping[str, pd.DataFrame], *, rule: str, split: str
) -> Unscored:
    """Return arm -> part -> where (``training`` and the split) -> ``count`` and ``share`` of samples without a value.

    Args:
        arms: arm -> prediction rows.
        training: arm -> metric rows; of arms that are absent, or drew no samples, nothing is said of the training.
        rule: whose samples are counted.
        split: name of the rows' split.
    """
    found: Unscored = {}
    for arm, rows in arms.items():
        own = rows[rows["rule"] == rule]
        names = [name.removeprefix(ASKED) for name in rows.columns if name.startswith(ASKED)]
        found[arm] = {}
        for name in names:
            asked, unscored = (float(own[prefix + name].sum()) for prefix in (ASKED, UNSCORED))
            share = unscored / asked if asked else 0.0
            places = found[arm][name] = {split: {"count": unscored, "share": share}}
            steps = training.get(arm, pd.DataFrame({"split": []})).query("split == 'train'")
            if f"reward/{name}/mean" in steps and steps[f"reward/{name}/mean"].notna().any():
                count, fraction = (
                    steps.get(f"reward/{name}/{what}", pd.Series(0.0, index=steps.index)).fillna(
                        0.0
                    )
                    for what in ("unscored_count", "unscored_fraction")
                )
                places["training"] = {"count": float(count.sum()), "share": float(fraction.mean())}
    return found


def unscored_sentences(unscored: Unscored) -> Iterator[str]:
    """Say of each arm which of the user's rewards left samples without a value, and how many."""
    for arm, parts in unscored.items():
        for name, places in parts.items():
            lost = {where: one for where, one in places.items() if one["count"]}
            counts = [
                f"{one['count']:.0f} samples ({one['share']:.1%}) in {where}"
                for where, one in lost.items()
            ]
            if counts:
                yield (
                    f"{arm}: the reward {name} gave no value for {' and '.join(counts)}; they are in no mean"
                    f"{', and those of the training taught nothing' if 'training' in lost else ''}."
                )


Estimates = dict[str, Estimate]


def compare(
    arms: Mapping[str, pd.DataFrame],
    params: EvaluationParams,
    *,
    suite: MetricSuite,
    commit: str,
    training: Mapping[str, pd.DataFrame] | None = None,
    instead: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Score every arm and rule on the same resamples and take the paired differences.

    Args:
        arms: arm -> prediction rows.
        params: names of control, rules and cluster; resamples and seed.
        suite: the task's metrics.
        commit: git commit of the code, or "unknown".
        training: arm -> metric rows, for what rewards of the user's gave no value while it was trained.

        instead: prediction rows of what a user would try instead, each under a rule of its own; they stand beside the rules of
            the baseline arm.

    Raises:
        ValueError: if the control or the baseline arm is missing, or the tables do not belong together.
    """
    check_arms(arms, params)
    predicted = [*arms.values(), *([] if instead is None else [instead])]
    suite = suite.for_names(dict.fromkeys(name for rows in predicted for name in rows.columns))
    tables = align_arms(arms, suite, headline=params.headline_rule, cluster=params.cluster)
    cores = tables[params.control][params.headline_rule]
    weights = cluster_weights(cores[params.cluster], resamples=params.resamples, seed=params.seed)
    if instead is not None and len(instead):
        tables[params.baseline_arm] |= align_baselines(
            instead, cores, suite, cluster=params.cluster
        )
    scores = {
        arm: score_rules(rules, weights, suite.metrics, cluster=params.cluster)
        for arm, rules in tables.items()
    }
    clusters = int(cores[params.cluster].nunique())
    # The section unscored of a comparison; none where no arm has a reward of the user's.
    found = count_unscored(arms, (training or {}), rule=params.headline_rule, split=params.split)
    document = {
        "task": params.task,
        "control": params.control,
        "split": params.split,
        "n": {"examples": len(cores), "clusters": clusters, "cluster": params.cluster},
        "seed": params.seed,
        "commit": commit,
        "headline": list(suite.headline),
        "interval": {
            "method": "percentile bootstrap of whole clusters",
            "level": 0.95,
            "resamples": params.resamples,
            # Without intervals there is nothing that they leave out.
            **({} if few_clusters_reason(clusters) else {"not_covered": NOT_COVERED}),
        },
        **score_sections(scores, params),
        **({"unscored": found} if any(found.values()) else {}),
    }
    document["verdicts"] = verdicts(document["own_minus_baseline"], suite.metrics, suite.judged)
    if suite.bar is not None:
        document["bar"] = judge_bar(document, suite.bar, suite.metrics)
    told = [
        *few_clusters_sentences(document["n"]),
        *change_sentences(document, suite.metrics, chance_rule=params.chance_rule),
    ]
    if params.not_run is not None:
        beside = (
            f"the others are compared with {params.control}"
            if len(arms) > 1
            else "nothing says what its reward has added"
        )
        document["not_run"] = params.not_run
        told = [f"{params.not_run}, the control, was not trained in this run: {beside}.", *told]
    return document | {
        "summary": [
            *told,
            *suite.summary(document),
            *baseline_sentences(document, suite.metrics, suite.judged, suite.bar),
            *bar_sentence(document, suite.metrics),
            *unscored_sentences(document.get("unscored", {})),
        ]
    }


def check_arms(arms: Mapping[str, pd.DataFrame], params: EvaluationParams) -> None:
    """Raise ValueError if the control or the baseline arm is not among the arms."""
    for field, arm in (("control", params.control), ("baseline_arm", params.baseline_arm)):
        if arm not in arms:
            raise ValueError(
                f"{params.task}.evaluation.{field} must be one of the arms {', '.join(arms)}, got {arm!r}"
            )


def score_rules(
    rules: Rules, weights: np.ndarray, metrics: Mapping[str, Metric], *, cluster: str
) -> dict[str, Estimates]:
    """Return rule -> metric -> estimate, all on the same resamples."""
    return {
        rule: {
            name: estimate(metric, rows, weights, cluster=cluster)
            for name, metric in metrics.items()
        }
        for rule, rows in rules.items()
    }


def estimate(metric: Metric, rows: pd.DataFrame, weights: np.ndarray, *, cluster: str) -> Estimate:
    """Return one metric of the sample (every weight 1) and of each resample of whole clusters, which a column names."""
    values = metric(rows, np.vstack([np.ones(len(rows)), weights]))
    return Estimate(
        value=float(values[0]),
        resamples=values[1:],
        n=metric.count(rows),
        reason=metric.reason,
        clusters=metric.count_clusters(rows, cluster),
        bounds=metric.bounds,
    )


def score_sections(
    scores: Mapping[str, dict[str, Estimates]], params: EvaluationParams
) -> dict[str, Any]:
    """Return the sections arms, differences, policy_gain, baselines and own_minus_baseline."""
    rule, chance = params.headline_rule, params.chance_rule

    def entries(estimates: Estimates) -> dict[str, Any]:
        return {
            name: describe(one, max_undefined=params.max_undefined)
            for name, one in estimates.items()
        }

    def gaps(treated: Estimates, control: Estimates) -> dict[str, Any]:
        differences = {name: paired_difference(one, control[name]) for name, one in treated.items()}
        return {
            name: {key: value for key, value in entry.items() if key != "n"}
            for name, entry in entries(differences).items()
        }

    return {
        "arms": {arm: {"metrics": entries(rules[rule])} for arm, rules in scores.items()},
        "differences": {
            arm: gaps(rules[rule], scores[params.control][rule])
            for arm, rules in scores.items()
            if arm != params.control
        },
        "policy_gain": {
            arm: gaps(rules[rule], rules[chance])
            for arm, rules in scores.items()
            if chance in rules
        },
        "baseline_arm": params.baseline_arm,
        "baselines": {
            name: {"metrics": entries(estimates)}
            for name, estimates in scores[params.baseline_arm].items()
            if name != rule
        },
        "own_minus_baseline": {
            name: gaps(scores[params.baseline_arm][rule], estimates)
            for name, estimates in scores[params.baseline_arm].items()
            if name != rule
        },
    }


def align_baselines(
    rows: pd.DataFrame, cores: pd.DataFrame, suite: MetricSuite, *, cluster: str
) -> Rules:
    """Return the rows of each baseline in the order of the arms' units.

    Raises:
        ValueError: if a baseline was not asked about exactly these units.
    """
    rules = split_rules(rows, suite, arm="the baselines", cluster=cluster)
    for rule, table in rules.items():
        check_same_units(table, cores, who=rule, unit=suite.unit, cluster=cluster)
    return rules
