"""Decide by the bar of a task whether an arm has learned from reward, and write the sentences about it.

``metric.Bar`` holds the conditions. They are joined by an intersection-union test (Berger 1982): an arm has to pass each of them.
That needs no correction for their number.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.statistics.baseline_verdicts import UNKNOWN, VERDICTS, verdicts
from grpo_pipeline.statistics.metric import Bar, Metric
from grpo_pipeline.statistics.wording import Entry, signed

# Rule -> metric -> paired difference, an arm's own policy minus the rule.
Gaps = Mapping[str, Mapping[str, Entry]]
MET, MISSED, NOT_SHOWN = "met", "missed", "not shown"
ANSWERS = {MET: "yes", MISSED: "no", NOT_SHOWN: "not shown", UNKNOWN: UNKNOWN}
START, CONTROL, SHUFFLED, FIXED = "start", "control", "shuffled", "fixed"


def has_moved(own: pd.DataFrame, start: pd.DataFrame) -> bool:
    """Decide whether a policy chooses otherwise than at its start, from paired prediction rows of both.

    Both are drawn with the same noise: rows of the same policy differ only by rounding. A cell that is empty in either table is
    ignored.
    """
    for name in own.columns.intersection(start.columns).drop("rule"):
        here, there = own[name].to_numpy(), start[name].to_numpy()
        known = ~(pd.isna(here) | pd.isna(there))
        here, there = here[known], there[known]
        is_number = pd.api.types.is_numeric_dtype(own[name])
        if not (np.allclose(here, there) if is_number else np.array_equal(here, there)):
            return True
    return False


def longer_than(training: Mapping[str, Mapping[str, Any]], control: str) -> list[str]:
    """List the arms that were trained for more steps than the control, from the section ``training`` of a document."""
    if control not in training:
        return []
    steps = training[control]["steps"]
    return [arm for arm, budget in training.items() if budget["steps"] > steps]


def judge_bar(
    gaps: Mapping[str, Gaps],
    values: Mapping[str, Mapping[str, Mapping[str, float | None]]],
    bar: Bar,
    metrics: Mapping[str, Metric],
    *,
    control: str,
    differences: Mapping[str, Mapping[str, Entry]],
    has_control: bool = True,
    longer: Collection[str] = (),
) -> dict[str, dict[str, dict[str, Any]]]:
    """Judge each arm by the bar: arm -> metric -> verdict with its conditions.

    Met: every condition's interval lies on the good side of 0. Missed: an interval lies on the bad side. No statement: a
    condition was not measured, or has no interval. Not shown: all other cases. The control is not compared with itself.

    Args:
        gaps: arm -> rule -> metric -> paired difference, the arm's own policy minus the rule.
        values: arm -> rule -> metric -> value of the rule, None where it is undefined.
        bar: the conditions.
        metrics: metrics of the task.
        control: name of the control.
        differences: arm -> metric -> paired difference to the control.
        has_control: False where the control was not trained, and another arm stands in its place.
        longer: arms that were trained for more steps than the control; they are not shown to be better than it.

    Returns:
        ``verdict`` of each arm and metric. ``conditions``: each with ``than`` (the rule or arm), ``verdict``, ``value`` and
            ``ci95``; of the fixed rules only the hardest. ``control_meets``: whether the control meets every condition but that
            beside itself.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for arm, of_rules in gaps.items():
        found[arm] = {}
        for name in bar.metrics:
            conditions = {START: _condition(of_rules, bar.start, name, metrics)}
            if arm != control:
                beside = {control: differences[arm]}
                conditions[CONTROL] = _condition(beside, control, name, metrics)
                if arm in longer and conditions[CONTROL]["verdict"] == VERDICTS["better"]:
                    unfair = {"verdict": VERDICTS["same"], "trained_longer": True}
                    conditions[CONTROL] |= unfair
            elif not has_control:
                conditions[CONTROL] = _condition({}, None, name, metrics)
            if bar.shuffled:
                conditions[SHUFFLED] = _condition(of_rules, bar.shuffled, name, metrics)
            if bar.fixed:
                hardest = _hardest(of_rules, values[arm], bar, name, metrics)
                conditions[FIXED] = _condition(of_rules, hardest, name, metrics)
            told = [condition["verdict"] for condition in conditions.values()]
            found[arm][name] = {"verdict": _verdict(told), "conditions": conditions}
    for of_metrics in found.values():
        for name, entry in of_metrics.items():
            entry["control_meets"] = has_control and found[control][name]["verdict"] == MET
    return found


def _verdict(told: list[str]) -> str:
    if VERDICTS["worse"] in told:
        return MISSED
    if UNKNOWN in told:
        return UNKNOWN
    return MET if {*told} == {VERDICTS["better"]} else NOT_SHOWN


def _condition(
    gaps: Gaps, than: str | None, name: str, metrics: Mapping[str, Metric]
) -> dict[str, Any]:
    if than is None or than not in gaps:
        return {"than": than, "verdict": UNKNOWN, "value": None, "ci95": None}
    gap = gaps[than][name]
    told = verdicts({than: gaps[than]}, metrics, [name])[than][name]
    return {"than": than, "verdict": told, "value": gap["value"], "ci95": gap["ci95"]}


def _hardest(
    gaps: Gaps,
    values: Mapping[str, Mapping[str, float | None]],
    bar: Bar,
    name: str,
    metrics: Mapping[str, Metric],
) -> str | None:
    """Choose the hardest fixed rule: of the rules with the policy's worst verdict, the rule with the best value.

    From worst to best, the verdicts are worse, no statement, not shown, better. None where no fixed rule is measured.
    """
    measured = {
        rule: float(value)
        for rule in bar.fixed
        if rule in gaps and (value := values[rule][name]) is not None
    }
    told = {rule: verdicts({rule: gaps[rule]}, metrics, [name])[rule][name] for rule in measured}
    for verdict in (VERDICTS["worse"], UNKNOWN, VERDICTS["same"], VERDICTS["better"]):
        if hard := [rule for rule in measured if told[rule] == verdict]:
            best = min if metrics[name].better == "lower" else max
            return best(hard, key=lambda rule: measured[rule])
    return None


def bar_sentences(
    comparison: Mapping[str, Any], bar: Bar | None, metrics: Mapping[str, Metric]
) -> list[str]:
    """Write for each arm and metric whether the arm has learned from reward, and why.

    An arm that reads no reward, or whose policy chooses as at its start, gets only a sentence about that. The control gets none,
    unless another arm stands in its place. A metric without a verdict is left out.

    Args:
        comparison: the document with ``bar``, and ``moved`` and ``training`` where they are known.
        bar: bar of the task; None: no sentences.
        metrics: metrics of the task.
    """
    if bar is None:
        return []
    sentences = []
    for arm in comparison["arms"]:
        if arm == comparison["control"] and comparison.get("not_run") is None:
            continue
        is_taught = comparison.get("training", {}).get(arm, {}).get("learns_from_reward")
        if comparison.get("moved", {}).get(arm) is False:
            sentences.append(f"{arm}: its policy chooses as it did at its start: {bar.unmoved}.")
        elif is_taught is False:
            sentences.append(f"{arm}: learns nothing from reward.")
        else:
            sentences += _answers(arm, comparison["bar"].get(arm, {}), comparison, metrics)
    return sentences


def _answers(
    arm: str,
    of_metrics: Mapping[str, Any],
    comparison: Mapping[str, Any],
    metrics: Mapping[str, Metric],
) -> Iterator[str]:
    for name, entry in of_metrics.items():
        conditions = entry["conditions"]
        if all(condition["ci95"] is None for condition in conditions.values()):
            continue
        side = "below" if metrics[name].better == "lower" else "above"
        parts = [_difference(kind, condition) for kind, condition in conditions.items()]
        yield " ".join(
            [
                f"{arm}: did learning from reward work, by {metrics[name].title}? {ANSWERS[entry['verdict']].capitalize()}.",
                f"Each must lie {side} 0: {'; '.join(parts)}.",
                *_remarks(arm, entry, comparison["control"]),
            ]
        )


def _difference(kind: str, condition: Mapping[str, Any]) -> str:
    if condition["than"] is None:
        return "no control was trained" if kind == CONTROL else "no fixed rule is measured"
    if condition["ci95"] is None:
        return f"own − {condition['than']}: {UNKNOWN}"
    return f"own − {condition['than']} {signed(condition)}"


def _remarks(arm: str, entry: Mapping[str, Any], control: str) -> Iterator[str]:
    told = {kind: condition["verdict"] for kind, condition in entry["conditions"].items()}
    if entry["conditions"].get(CONTROL, {}).get("trained_longer"):
        yield f"{arm} was trained for more steps than {control}: own − {control} shows nothing."
    if not entry["control_meets"] or arm == control:
        return
    others = [verdict for kind, verdict in told.items() if kind != CONTROL]
    if entry["verdict"] == MET:
        yield f"{control} is above all the others as well: what reward adds is own − {control}."
    elif {*others} == {VERDICTS["better"]}:
        yield f"{control} is above all the others as well: this is no success of the reward."
