"""Describe a task to the project: arms, metrics, words; imports no torch, so that the list of pipelines opens quickly.

A task is two places: its package, ``tasks/<name>/`` in this project, and its files in ``conf/base/<name>/``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pkgutil import resolve_name
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Wording:
    """How reports call the samples of a task and the rules beside its policy.

    Attributes:
        drawn: what an arm's row of the comparison rests on.
        gain: what the gain over the chance rule compares, after "<arm>: ".
        rules: what the other rules are, before the arm's name.
        rule: what a rule chooses, above the column of the rules of many arms.
        others: heading of the table of the other rules of many arms.
        caption: of that table.
        explained: what its rows are, before the rules are named.
        choices: rule -> how it chooses.
        clusters: what is resampled as a whole.
        terms: term of art, as titles of metrics and pages write it -> what it is, in one plain sentence.
    """

    drawn: str = "one sample per example"
    gain: str = "its samples − those of the chance rule"
    rules: str = "Other rules beside the policy of"
    rule: str = "samples"
    others: str = "Other samples"
    caption: str = "Other samples for the same examples"
    explained: str = "Samples of other rules for the same examples"
    choices: Mapping[str, str] = field(default_factory=dict)
    clusters: str = "example"
    terms: Mapping[str, str] = field(default_factory=dict)

    def explanation(self, rules: Iterable[str]) -> str:
        """Return what the rows of these rules are; a rule that was not measured is not spoken of."""
        named = [
            f"{rule} ({self.choices[rule]})" if rule in self.choices else rule
            for rule in dict.fromkeys(rules)
        ]
        return f"{self.explained}: {', '.join(named) or 'none was measured'}."


@dataclass(frozen=True)
class TaskSpec:
    """One task: its arms, its parts that are found by name, and its words.

    Attributes:
        name: prefix of its catalogue names, parameters and pipelines.
        arms: in the order of the report; the control is named by ``<name>.evaluation``.
        metrics: ``module:function`` of (metric options) -> ``MetricSuite``; the metrics with their directions.
        pipelines: module with the Kedro side of the task. ``create_pipeline()`` leads to ``<name>.examples``,
            ``create_preparation()`` from there to ``<name>.data`` and ``<name>.task``; ``create_report``, ``create_prediction``
            and ``adapt_preparation`` where the task has its own.
        stages: trained before the arms, each ``<name>.<stage>``; the arms begin with the weights of the last one.
        optional_stages: stages that are trained, before the others, only where the parameters have their section
            ``<name>.<stage>``.
        keeping_one: arms that make one model, by ``training.keep``; known once the parameters are read.
        own: arm -> the sections of parameters that it does not share with the others, beside its algorithm.
        words: how its report calls the samples.
        curves: metric of training rows -> title of its panel, of the metrics that this task alone has.
        outputs: array of ``Task.showcase`` -> what it is called, of what the model puts out for each input: where that is the
            same for every input the page and the terminal say so.
        pictures: ``module:function`` of (frames, arm=) -> a picture, uint8 [H, W, 3], for each frame of a training
            (``Task.training_frame``), which MLflow shows by step; empty where the task takes none.
        shown_arm: the arm whose samples the report shows; empty for the last one.
        key: column of the examples' table that names an example.
        noun: what an example is called.
        classes: column of the examples' table by which they are told apart: its values are counted by split.
        one_of_each: ``module:function`` of (examples, row numbers) -> what the page shows of one example of each class: a table
            (DataFrame) or a picture (PNG or SVG, bytes); empty where their rows of the table say enough.
        with_table: ``module:function`` of (examples, table) -> examples with this table; empty where the table is just replaced.
        reward_section: the section of the parameters that weighs the components of the reward.
        sections: name -> model of the sections of parameters that this task alone has; their modules import no torch. A wrong
            value is refused before anything is imported, and in a section that is left out here when its pipeline is built.
        baselines: ``module:function`` of (task, data, names, rows, seed=) -> prediction rows of what a user would try instead,
            fitted on the training split, ``rule`` being its name; ``<name>.evaluation.baselines`` says which of them a run fits.
    """

    name: str
    arms: tuple[str, ...]
    metrics: str
    pipelines: str
    stages: tuple[str, ...] = ()
    optional_stages: tuple[str, ...] = ()
    keeping_one: tuple[str, ...] = ()
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words: Wording = field(default_factory=Wording)
    curves: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    pictures: str = ""
    shown_arm: str = ""
    key: str = "example_id"
    noun: str = "example"
    classes: str = "label"
    one_of_each: str = ""
    with_table: str = ""
    reward_section: str = "reward"
    sections: Mapping[str, Any] = field(default_factory=dict)
    baselines: str = ""

    def with_stages_of(self, section: Any) -> "TaskSpec":
        """Return the spec whose ``stages`` begin with the optional ones that a task's parameters switch on."""
        given = section if isinstance(section, Mapping) else {}
        chosen = [stage for stage in self.optional_stages if given.get(stage) is not None]
        return replace(self, stages=(*chosen, *self.stages)) if chosen else self

    def build_suite(self, options: Mapping[str, float]) -> Any:
        """Return the ``MetricSuite``; raises ``pydantic.ValidationError`` if an option is unknown to the task."""
        return resolve_name(self.metrics)(options)

    def wiring(self) -> ModuleType:
        """Return the module with the Kedro side of the task."""
        return import_module(self.pipelines)
