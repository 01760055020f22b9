"""State the answer of a comparison once; terminal, page and MLflow show this answer (docs/answer.md)."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from grpo_pipeline.statistics.bar import FIXED
from grpo_pipeline.statistics.metric import Direction

Verdict = Literal["better", "no difference shown", "worse", "cannot be shown"]
Learned = Literal["yes", "no", "not shown", "cannot be shown", "fixed, not learned"]
Interval = tuple[float | None, float | None] | None


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


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
