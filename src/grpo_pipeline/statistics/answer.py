"""State the answer of a comparison once; terminal, page and MLflow show this answer (docs/answer.md)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

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
from grpo_pipeline.statistics.metric import Direction, Metric, MetricSuite
from grpo_pipeline.statistics.wording import Entry, tone_of

Verdict = Literal["better", "no difference shown", "worse", "cannot be shown"]
Learned = Literal["yes", "no", "not shown", "cannot be shown", "fixed, not learned"]
Interval = tuple[float | None, float | None] | None
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


class Change(BaseModel):
    """A metric of the arm, compared with the same metric of the control or of a rule.

    Attributes:
        metric: its name in the documents.
        title: its name for people.
        better: the direction that is good.
        before: value of the control or of the rule; None where it is undefined.
        after: value of the arm.
        difference: after - before, paired.
        interval: 95% interval of the difference; None where there is none.
        verdict: what the interval shows.
        reason: why there is no value or no interval; empty where there is one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str
    title: str
    better: Direction
    before: float | None
    after: float | None
    difference: float | None
    interval: Interval
    verdict: Verdict
    reason: str = ""

    @property
    def tone(self) -> str:
        """Find the tone of the verdict: "better", "worse", or "" where no difference is shown."""
        return self.verdict if self.verdict in ("better", "worse") else ""

    @property
    def verdict_text(self) -> str:
        """Write the verdict, and the difference if one is shown: ``Better, +0.18``."""
        gap = f", {self.difference:+.2f}" if self.difference is not None and self.tone else ""
        return f"{self.verdict}{gap}".capitalize()

    @property
    def text(self) -> str:
        """Write title, values and difference: ``AUROC 0.64 → 0.84, +0.21 [+0.14, +0.28]``."""
        if self.after is None:
            return f"{self.title}: {self.reason or 'undefined'}"
        if self.before is None or self.difference is None:
            return f"{self.title} {self.after:.2f}"
        return f"{self.title} {self.before:.2f} → {self.after:.2f}, {self.gap}"

    @property
    def gap(self) -> str:
        """Write the difference with its interval: ``+0.21 [+0.14, +0.28]``."""
        low, high = self.interval or (None, None)
        interval = "" if low is None or high is None else f" [{low:+.2f}, {high:+.2f}]"
        return "" if self.difference is None else f"{self.difference:+.2f}{interval}"


class Comparison(BaseModel):
    """A comparison of the arm with a rule or another arm.

    Attributes:
        kind: ``start``, ``control``, ``shuffled``, ``fixed``: a condition of the bar; ``ceiling``: a rule that knows the answer;
            ``arm``: another arm.
        name: the rule or the arm; None where it was not measured.
        change: the arm's own policy beside it, in the primary metric.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    name: str | None
    change: Change

    @property
    def text(self) -> str:
        """Write name, value and verdict: ``blobs (0.66): better, +0.18``."""
        return f"{self.name} ({_short(self.change.before)}): {self.change.verdict_text.lower()}"


class Cost(BaseModel):
    """The cost of an arm's training.

    Attributes:
        steps: number of batches that the arm learned from.
        samples: number of samples drawn for these batches; None where it was not counted.
        reward_calls: number of samples, or parts of samples, whose reward was measured; None where it was not counted.
        seconds: duration of the training steps; in a grid, of a trial with its evaluation. None where it is not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int
    samples: int | None
    reward_calls: int | None
    seconds: float | None = None

    @property
    def text(self) -> str:
        """Write the counts that are known: ``115 steps, 14,720 samples, 14,720 reward calls, 3.4 min``."""
        counts = {"steps": self.steps, "samples": self.samples, "reward calls": self.reward_calls}
        parts = [f"{count:,} {what}" for what, count in counts.items() if count]
        if self.seconds is not None:
            minutes = self.seconds / 60
            parts.append(f"{minutes:.1f} min" if minutes >= 1 else f"{self.seconds:.0f} s")
        return ", ".join(parts)


class ChosenModel(BaseModel):
    """The recommended model: of all arms, the best on the validation split. The test split has no part in the choice.

    Attributes:
        arm: the arm that trained it.
        name: name of the model in a prediction: the arm's name, with ``.best`` where the arm's last weights are another model.
        step: number of training steps before its weights were kept.
        metric: metric of the validation split by which it was chosen.
        value: value of that metric.
        last: value of that metric for the arm's last weights; None where it is undefined.
        is_last: whether these are the last weights.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str
    name: str
    step: int
    metric: str
    value: float
    last: float | None
    is_last: bool

    @property
    def text(self) -> str:
        """Write name, metric and step: ``grpo.best, 0.85 validation AUROC after 60 steps (after the last: 0.80)``."""
        beside = "" if self.is_last else f" (after the last: {_short(self.last)})"
        return f"{self.name}, {_short(self.value)} validation {self.metric} after {self.step} steps{beside}"


class Answer(BaseModel):
    """The answer of a comparison about one arm, for people.

    Attributes:
        task: name of the task.
        arm: the arm that the answer is about.
        control: the arm that it is compared with.
        split: the split whose examples are scored.
        examples: number of scored examples.
        noun: the word for one example.
        clusters: number of clusters of examples; the intervals resample clusters.
        cluster: the word for one cluster.
        seeds: seeds of the trainings.
        verdict: verdict on the primary metric, compared with the control.
        reason: why nothing can be shown; empty where something can.
        primary: the task's primary metric, control -> arm.
        learned: whether the policy learned from reward, by the bar.
        why: one sentence with the reason for ``learned``.
        conditions: the conditions of the bar.
        ceiling: a rule that knows the answer, where there is one.
        arms: the other arms.
        rows: the metrics of the short table, control -> arm.
        others: where several arms are compared with the control, the primary metric of each, titled by the arm's name. ``arm`` is
            the best of them.
        looked_at: number of metrics with an interval and a good direction.
        worse: titles of the metrics that are worse than the control's.
        improved: titles of the metrics that are better than the control's.
        same_everywhere: outputs of the arm that are the same for every input; they show nothing about the input.
        undefined: title of a metric -> the reason why it has no value.
        not_covered: what the intervals leave out.
        notes: further sentences that belong to the answer.
        cost: arm -> cost of its training.
        commit: commit of the code.
        run: identity of the run.
        model: the recommended model; None where no best weights were kept.
        scored: digest of the names, labels and clusters of the examples that were scored.
        machine: processor, cores and threads that computed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    arm: str
    control: str
    split: str
    examples: int
    noun: str
    clusters: int
    cluster: str
    seeds: tuple[int, ...]
    verdict: Verdict
    reason: str
    primary: Change
    learned: Learned
    why: str
    conditions: tuple[Comparison, ...]
    ceiling: Comparison | None
    arms: tuple[Comparison, ...]
    rows: tuple[Change, ...]
    others: tuple[Change, ...] = ()
    looked_at: int
    worse: tuple[str, ...]
    improved: tuple[str, ...]
    same_everywhere: tuple[str, ...]
    undefined: dict[str, str]
    not_covered: str
    notes: tuple[str, ...] = ()
    cost: dict[str, Cost]
    commit: str
    run: str = ""
    model: ChosenModel | None = None
    scored: str = ""
    machine: str = ""

    @property
    def fixed(self) -> Comparison | None:
        """Find the best rule that needs no training; None where no such rule was measured."""
        return next((one for one in self.conditions if one.kind == FIXED and one.name), None)

    @property
    def table(self) -> tuple[Change, ...]:
        """List the rows of the shown table: the metrics of a single arm, or the primary metric of each of several arms."""
        return self.others or self.rows

    @property
    def heads(self) -> tuple[str, str, str, str]:
        """Name the columns of the table: metric or arm, the control's value, the arm's value, the difference."""
        if self.others:
            return "arm", self.control, self.primary.title, f"arm - {self.control}"
        return "metric", self.control, self.arm, f"{self.arm} - {self.control}"

    @property
    def question(self) -> str:
        """Write the question that the verdict answers."""
        which = f"{self.arm}, the best of {len(self.others)} arms," if self.others else self.arm
        return f"{self.task.capitalize()}: is {which} better than {self.control}, its control?"

    @property
    def has_intervals(self) -> bool:
        """Check whether any difference of the table has an interval."""
        return any(row.interval is not None for row in self.table)

    @property
    def sentence(self) -> str:
        """Write the primary metric, the number of examples behind it, and the reason if nothing can be shown."""
        why = f": {self.reason}" if self.reason else ""
        of = f" of {self.clusters} {self.cluster}s" if self.clusters < self.examples else ""
        mean = f", mean over {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        return f"{self.primary.text} on {self.examples} {self.split} {self.noun}s{of}{mean}{why}"

    @property
    def short(self) -> str:
        """Write the primary metric with its values first, for narrow places: ``0.64 → 0.84 AUROC``."""
        return f"{_short(self.primary.before)} → {_short(self.primary.after)} {self.primary.title}"

    @property
    def headline(self) -> str:
        """Write a title: task, primary metric and verdict."""
        return f"{self.task.capitalize()}: {self.primary.text}, {self.verdict}"

    @property
    def remarks(self) -> list[str]:
        """Write short remarks: the reasons behind the verdict, and the metrics that got worse."""
        remarks = [f"learned from reward: {self.learned} ({self.why})"]
        rules = [] if self.fixed is None else [f"against the best fixed rule, {self.fixed.text}"]
        if self.ceiling is not None:
            value = _short(self.ceiling.change.before)
            rules.append(f"{self.ceiling.name}, which knows the answer, has {value}")
        remarks += ["; ".join(rules)] if rules else []
        remarks += [f"against the arm {one.text}" for one in self.arms if one.name != self.control]
        if self.looked_at:
            named = f": {', '.join(self.worse)}" if self.worse else ""
            remarks.append(f"got worse: {len(self.worse)} of {self.looked_at} metrics{named}")
        if self.same_everywhere:
            remarks.append(
                f"the same for every input, do not read it: {', '.join(self.same_everywhere)}"
            )
        if self.model is not None:
            remarks.append(f"model to take: {self.model.text}")
        if (spent := self.cost.get(self.arm)) is not None:
            remarks.append(f"cost of {self.arm}: {spent.text}")
        return [*remarks, *self.notes]

    @property
    def markdown(self) -> str:
        """Write the answer as Markdown: verdict, remarks, and the short table."""
        rows = [
            f"| {row.title} | {_short(row.before)} | {_short(row.after)} | {row.gap} | {row.tone} |"
            for row in self.table
        ]
        head = f"| {' | '.join(self.heads)} | |"
        lines = [f"**{self.task.capitalize()}: {self.verdict}.** {self.sentence}", ""]
        lines += [f"- {remark}" for remark in self.remarks]
        return "\n".join([*lines, "", head, "|---|---|---|---|---|", *rows])

    @classmethod
    def of(
        cls,
        comparison: Mapping[str, Any],
        suite: MetricSuite,
        *,
        seconds: Mapping[str, float] | None = None,
    ) -> Self:
        """Read the answer from a comparison document (docs/metrics.md).

        Args:
            comparison: the document. The answer is about its ``baseline_arm``.
            suite: metrics of the task, with those of the document.
            seconds: arm -> duration of its training.
        """
        arm, control = comparison["baseline_arm"], comparison["control"]
        not_run = comparison.get("not_run")
        is_alone = (
            not_run is not None or arm == control
        )  # nothing stands for what training without reward gives
        values = {name: found["metrics"] for name, found in comparison["arms"].items()}
        suite = suite.for_names(values[control])
        directed = (name for name, metric in suite.metrics.items() if metric.better != "none")
        wanted = comparison.get("primary_metrics", ())
        primary = next(iter((*wanted, *suite.judged, *suite.headline, *directed, *suite.metrics)))
        theirs, gaps = (
            ({}, {}) if is_alone else (values[control], comparison["differences"].get(arm, {}))
        )
        against = {
            name: change(name, metric, theirs, values[arm], gaps)
            for name, metric in suite.metrics.items()
        }
        if longer := _longer(comparison, arm):  # more steps alone may explain what is better
            against = {name: _not_shown(one, longer) for name, one in against.items()}
        verdict, reason = _verdict(comparison, arm, against[primary])
        learned, why = _learned(comparison, arm, primary)
        if comparison["n"]["clusters"] < FEW_CLUSTERS and learned == "cannot be shown":
            why = _too_few(comparison["n"])
        told = {
            name: one
            for name, one in against.items()
            if one.better != "none" and one.verdict != "cannot be shown"
        }
        short = [name for name in suite.headline if name in against] or [*against]
        known = [values[one] for one in (arm, control) if one in values]
        # What is undefined in every arm (points in outlines that nobody drew) is no row of the table.
        undefined = {
            name
            for name in short
            if all(one.get(name, {"value": 0.0})["value"] is None for one in known)
        }
        measured = [name for name in short if name not in undefined]
        rows = dict.fromkeys((primary, *measured))
        return cls(
            task=comparison["task"],
            arm=arm,
            control=not_run or control,
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
            rows=tuple(against[name] for name in rows),
            others=tuple(_beside_the_control(comparison, primary, suite.metrics[primary])),
            looked_at=len(told),
            worse=tuple(one.title for one in told.values() if one.verdict == "worse"),
            improved=tuple(one.title for one in told.values() if one.verdict == "better"),
            same_everywhere=tuple(
                name
                for name, found in comparison.get("sameness", {}).get(arm, {}).items()
                if found["is_same"]
            ),
            undefined={
                suite.metrics[name].title: entry["reason"].removeprefix("undefined: ")
                for name, entry in values[arm].items()
                if name in suite.metrics and entry["value"] is None
            },
            not_covered=comparison["interval"].get("not_covered", ""),
            notes=tuple(comparison.get("notes", ())),
            cost={
                name: Cost(
                    **{key: one for key, one in budget.items() if key in Cost.model_fields},
                    seconds=(seconds or {}).get(name),
                )
                for name, budget in comparison.get("training", {}).items()
            },
            commit=comparison["commit"],
            run=comparison.get("run", ""),
            model=_taken(comparison.get("best_validation", {}), suite),
            scored=comparison["n"].get("digest", ""),
        )

    @classmethod
    def of_grid(cls, result: Mapping[str, Any], suite: MetricSuite) -> Self:
        """Read the answer from the result of ``compare`` or ``cross_validate``, about the arm that gains most over the control.

        The arm's interval covers the differences of all arms together, so that the best of many is not better by chance.

        Args:
            result: the document (docs/compare.md, docs/cross_validation.md).
            suite: metrics of the task.
        """
        kind, control, name = (
            result.get("headline"),
            result["control"],
            result["primary_metrics"][0],
        )
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
                arm: {"metrics": headline(found["metrics"])}
                for arm, found in result["arms"].items()
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
        return cls.of({**result, **read}, suite, seconds=seconds)


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


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


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
