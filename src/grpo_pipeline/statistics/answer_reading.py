"""Read the answer from the document of a comparison, or of a grid of trainings (docs/metrics.md)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_pipeline.statistics.answer import (
    Answer,
    Change,
    ChosenModel,
    Comparison,
    Cost,
    Learned,
    Verdict,
)
from grpo_pipeline.statistics.bar import (
    CONTROL,
    FIXED,
    MET,
    MISSED,
    NOT_SHOWN,
    SHUFFLED,
    START,
    longer_than,
)
from grpo_pipeline.statistics.bootstrap import FEW_CLUSTERS
from grpo_pipeline.statistics.metric import Metric, MetricSuite
from grpo_pipeline.statistics.wording import Entry, tone_of

OF_TONE: dict[str, Verdict] = {
    "better": "better",
    "worse": "worse",
    "same": "no difference shown",
    "": "cannot be shown",
}
OF_BAR: dict[str, Learned] = {MET: "yes", MISSED: "no", NOT_SHOWN: "not shown"}
WORDS = {  # of the conditions of the bar
    START: "its own start",
    CONTROL: "the control",
    SHUFFLED: "exchanged choices",
    FIXED: "the best fixed rule",
}


def read_answer(
    comparison: Mapping[str, Any],
    suite: MetricSuite,
    *,
    seconds: Mapping[str, float] | None = None,
) -> Answer:
    """Read the answer about the document's ``baseline_arm``.

    Args:
        comparison: the document.
        suite: metrics of the task, with those of the document.
        seconds: arm -> duration of its training.
    """
    arm, control = comparison["baseline_arm"], comparison["control"]
    values = {name: found["metrics"] for name, found in comparison["arms"].items()}
    suite = suite.for_names(values[control])
    primary = _primary(comparison, suite)
    against = _against_the_control(comparison, suite, values)
    verdict, reason = _verdict(comparison, arm, against[primary])
    learned, why = _learned(comparison, arm, primary)
    if learned == "cannot be shown" and comparison["n"]["clusters"] < FEW_CLUSTERS:
        why = _too_few(comparison["n"])
    # Metrics of which something is shown: with an interval, and a good direction.
    told = [
        one for one in against.values() if one.better != "none" and one.verdict != "cannot be shown"
    ]
    same = comparison.get("sameness", {}).get(arm, {})
    return Answer(
        task=comparison["task"],
        arm=arm,
        control=comparison.get("not_run") or control,
        split=comparison["split"],
        examples=comparison["n"]["examples"],
        noun=suite.unit.noun,
        clusters=comparison["n"]["clusters"],
        cluster=cluster_noun(comparison["n"]),
        seeds=tuple(comparison.get("seeds") or (comparison["seed"],)),
        verdict=verdict,
        reason=reason,
        primary=against[primary],
        learned=learned,
        why=why,
        conditions=tuple(_conditions(comparison, arm, primary, suite, values[arm])),
        ceiling=_ceiling(comparison, primary, suite, values[arm]),
        arms=tuple(_other_arms(comparison, primary, suite.metrics[primary], values)),
        rows=tuple(
            against[name]
            for name in dict.fromkeys((primary, *_measured(comparison, suite, values)))
        ),
        others=tuple(_beside_the_control(comparison, primary, suite.metrics[primary])),
        looked_at=len(told),
        worse=tuple(one.title for one in told if one.verdict == "worse"),
        improved=tuple(one.title for one in told if one.verdict == "better"),
        same_everywhere=tuple(name for name, found in same.items() if found["is_same"]),
        undefined={
            suite.metrics[name].title: entry["reason"].removeprefix("undefined: ")
            for name, entry in values[arm].items()
            if name in suite.metrics and entry["value"] is None
        },
        not_covered=comparison["interval"].get("not_covered", ""),
        notes=tuple(comparison.get("notes", ())),
        cost=dict(_costs(comparison, seconds or {})),
        commit=comparison["commit"],
        run=comparison.get("run", ""),
        model=_taken(comparison.get("best_validation", {}), suite),
        scored=comparison["n"].get("digest", ""),
    )


def read_grid_answer(result: Mapping[str, Any], suite: MetricSuite) -> Answer:
    """Read the answer of ``compare`` or ``cross_validate``, about the arm that gains most over the control.

    The arm's interval covers the differences of all arms together, so that the best of many is not better by chance.

    Args:
        result: the document (docs/compare.md, docs/cross_validation.md).
        suite: metrics of the task.
    """
    kind, control, name = result.get("headline"), result["control"], result["primary_metrics"][0]
    metric = suite.for_names([name]).metrics[name]

    def headline(entries: Mapping[str, Any]) -> dict[str, Entry]:
        return {one: entry[kind] if kind else entry for one, entry in entries.items()}

    differences = {arm: headline(gaps) for arm, gaps in result["differences"].items()}
    sign = -1.0 if metric.better == "lower" else 1.0
    gained = {arm: gaps.get(name, {}).get("value") for arm, gaps in differences.items()}
    known = {arm: sign * gain for arm, gain in gained.items() if gain is not None}
    best = max(known, key=lambda arm: known[arm]) if known else next(iter(differences), control)
    seeds = result["seeds"]
    read = {
        "arms": {
            arm: {"metrics": headline(found["metrics"])} for arm, found in result["arms"].items()
        },
        "baseline_arm": best,
        "differences": differences,
        "own_minus_arms": {},
        "baselines": {},
        "seeds": seeds[control] if isinstance(seeds, Mapping) else seeds,
        "split": result.get("split", "out-of-fold"),
    }
    took: dict[str, list[float]] = {}
    for key, trial in result.get("trials", {}).items():
        if trial["seconds"] is not None:
            took.setdefault(key.split(".seed")[0], []).append(trial["seconds"])
    seconds = {arm: sum(each) / len(each) for arm, each in took.items()}
    return read_answer({**result, **read}, suite, seconds=seconds)


def _primary(comparison: Mapping[str, Any], suite: MetricSuite) -> str:
    """Name the metric of the verdict: what was asked for, what the task is judged by, or the first with a good direction."""
    directed = (name for name, metric in suite.metrics.items() if metric.better != "none")
    wanted = comparison.get("primary_metrics", ())
    first: str = next(iter((*wanted, *suite.judged, *suite.headline, *directed, *suite.metrics)))
    return first


def _against_the_control(
    comparison: Mapping[str, Any], suite: MetricSuite, values: Mapping[str, Mapping[str, Entry]]
) -> dict[str, Change]:
    """Compare each metric of the arm with that of the control, or with nothing where no control was trained."""
    arm, control = comparison["baseline_arm"], comparison["control"]
    theirs, gaps = values[control], comparison["differences"].get(arm, {})
    if comparison.get("not_run") is not None or arm == control:
        theirs, gaps = {}, {}
    found = {
        name: change(name, metric, theirs, values[arm], gaps)
        for name, metric in suite.metrics.items()
    }
    if longer := _longer(comparison, arm):  # more steps alone may explain what is better
        return {name: _not_shown(one, longer) for name, one in found.items()}
    return found


def _measured(
    comparison: Mapping[str, Any], suite: MetricSuite, values: Mapping[str, Mapping[str, Entry]]
) -> list[str]:
    """List the metrics of the short table that have a value in one of the two arms.

    What is undefined in both, such as points in outlines that nobody drew, is no row of the table.
    """
    arms = (comparison["baseline_arm"], comparison["control"])
    known = [values[arm] for arm in arms if arm in values]
    short = [name for name in suite.headline if name in suite.metrics] or [*suite.metrics]
    return [
        name
        for name in short
        if any(one.get(name, {"value": 0.0})["value"] is not None for one in known)
    ]


def _costs(
    comparison: Mapping[str, Any], seconds: Mapping[str, float]
) -> Iterator[tuple[str, Cost]]:
    for name, budget in comparison.get("training", {}).items():
        counted = {key: one for key, one in budget.items() if key in Cost.model_fields}
        yield name, Cost(**counted, seconds=seconds.get(name))


def _taken(best: Mapping[str, Mapping[str, Any]], suite: MetricSuite) -> ChosenModel | None:
    """Choose the model with the highest validation value, the first of equal ones; None where the arms' metrics differ."""
    metrics = {found["metric"] for found in best.values()}
    if len(metrics) != 1:
        return None
    arm = max(best, key=lambda name: float(best[name]["best"]["value"]))
    metric, found, last = metrics.pop(), best[arm]["best"], best[arm]["last"]
    is_last = found["step"] == last["step"]
    return ChosenModel(
        arm=arm,
        name=arm if is_last or best[arm]["kind"] == "model" else f"{arm}.best",
        step=found["step"],
        metric=suite.metrics[metric].title if metric in suite.metrics else metric,
        value=found["value"],
        last=last["value"],
        is_last=is_last,
    )


def change(
    name: str,
    metric: Metric,
    before: Mapping[str, Entry],
    after: Mapping[str, Entry],
    differences: Mapping[str, Entry],
) -> Change:
    """Join the two values of a metric, their paired difference, and its verdict."""
    gap = differences.get(name, {"value": None, "ci95": None})
    entries = (before.get(name, {}), after.get(name, {}), gap)
    reasons = [str(entry["reason"]) for entry in reversed(entries) if entry.get("reason")]
    interval = gap.get("ci95_simultaneous") or gap.get("ci95")
    return Change(
        metric=name,
        title=metric.title,
        better=metric.better,
        before=entries[0].get("value"),
        after=entries[1].get("value"),
        difference=gap.get("value"),
        interval=None if interval is None else (interval[0], interval[1]),
        verdict=OF_TONE[tone_of(gap, metric.better)],
        reason=reasons[0].removeprefix("undefined: ") if reasons and interval is None else "",
    )


def _verdict(comparison: Mapping[str, Any], arm: str, primary: Change) -> tuple[Verdict, str]:
    """Decide the verdict on the primary metric against the control; returns it with the reason if nothing can be shown."""
    if (not_run := comparison.get("not_run")) is not None:
        return "cannot be shown", f"the control, {not_run}, was not trained"
    if arm == comparison["control"]:
        return "cannot be shown", "no other arm was trained"
    if comparison["n"]["clusters"] < FEW_CLUSTERS:
        return "cannot be shown", _too_few(comparison["n"])
    return primary.verdict, primary.reason if primary.verdict == "cannot be shown" else ""


def _longer(comparison: Mapping[str, Any], arm: str) -> str:
    """Write by how much longer than the control an arm was trained; empty where it was not longer."""
    training, control = comparison.get("training", {}), comparison["control"]
    if arm not in longer_than(training, control):
        return ""
    own, theirs = training[arm]["steps"], training[control]["steps"]
    return f"it was trained for {own} steps, the control for {theirs}"


def _not_shown(change: Change, reason: str) -> Change:
    if change.verdict != "better":
        return change
    return change.model_copy(update={"verdict": "cannot be shown", "reason": reason})


def cluster_noun(n: Mapping[str, Any]) -> str:
    """Name a cluster by its column, without the column's ending."""
    return str(n["cluster"]).removesuffix("_id").replace("_", " ")


def _too_few(n: Mapping[str, Any]) -> str:
    return f"fewer than {FEW_CLUSTERS} {cluster_noun(n)}s show nothing"


def _learned(comparison: Mapping[str, Any], arm: str, primary: str) -> tuple[Learned, str]:
    """Decide by the bar whether the policy learned from reward; returns the verdict and its reason."""
    if comparison.get("moved", {}).get(arm) is False:
        return "fixed, not learned", "its policy chooses as it did at its start"
    if comparison.get("training", {}).get(arm, {}).get("learns_from_reward") is False:
        return "no", "no loss of it reads a reward"
    found = comparison.get("bar", {}).get(arm, {}).get(primary)
    if found is None and "primary_metrics" in comparison:
        return (
            "cannot be shown",
            "its start and the rules are not measured here, but in a run of it",
        )
    if found is None:
        return "cannot be shown", "the task names nothing that it must be better than"
    learned = OF_BAR.get(found["verdict"], "cannot be shown")
    wanted = {"yes": "better", "no": "worse", "not shown": "no difference shown"}.get(learned)
    decisive = [
        WORDS[kind]
        for kind, condition in found["conditions"].items()
        if (condition["verdict"] == wanted if wanted else condition["ci95"] is None)
    ]
    if learned == "yes" and found["control_meets"]:
        return learned, "better than all it is held against, as the control is but for itself"
    return learned, f"{wanted or 'nothing known'} beside {_listed(decisive)}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _conditions(
    comparison: Mapping[str, Any],
    arm: str,
    primary: str,
    suite: MetricSuite,
    own: Mapping[str, Entry],
) -> Iterator[Comparison]:
    found = comparison.get("bar", {}).get(arm, {}).get(primary, {"conditions": {}})
    for kind, condition in found["conditions"].items():
        other = condition["than"]
        metrics = (comparison["arms"] if kind == CONTROL else comparison["baselines"]).get(
            other, {"metrics": {}}
        )["metrics"]
        gap = {primary: {key: condition[key] for key in ("value", "ci95")}}
        compared = change(primary, suite.metrics[primary], metrics, own, gap)
        told = condition["verdict"] if condition["ci95"] is not None else "cannot be shown"
        yield Comparison(
            kind=kind, name=other, change=compared.model_copy(update={"verdict": told})
        )


def _ceiling(
    comparison: Mapping[str, Any], primary: str, suite: MetricSuite, own: Mapping[str, Entry]
) -> Comparison | None:
    for name in suite.bar.ceilings if suite.bar is not None else ():
        entries = comparison["baselines"].get(name, {"metrics": {}})["metrics"]
        if entries.get(primary, {}).get("value") is not None:
            gaps = comparison["own_minus_baseline"][name]
            return Comparison(
                kind="ceiling",
                name=name,
                change=change(primary, suite.metrics[primary], entries, own, gaps),
            )
    return None


def _beside_the_control(
    comparison: Mapping[str, Any], primary: str, metric: Metric
) -> Iterator[Change]:
    """Compare each arm of a grid with the control; the arm's name is the title."""
    differences, arms = comparison["differences"], comparison["arms"]
    if "primary_metrics" not in comparison or len(differences) < 2:
        return
    before = arms[comparison["control"]]["metrics"]
    for arm, gaps in differences.items():
        found = change(primary, metric, before, arms[arm]["metrics"], gaps)
        if longer := _longer(comparison, arm):
            found = _not_shown(found, longer)
        yield found.model_copy(update={"title": arm})


def _other_arms(
    comparison: Mapping[str, Any],
    primary: str,
    metric: Metric,
    values: Mapping[str, Mapping[str, Entry]],
) -> Iterator[Comparison]:
    own = values[comparison["baseline_arm"]]
    for name, gaps in comparison["own_minus_arms"].items():
        yield Comparison(
            kind="arm", name=name, change=change(primary, metric, values[name], own, gaps)
        )
