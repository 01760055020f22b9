"""Describe a task to the project: arms, metrics, words. The file imports no torch, so that pipelines are listed quickly.

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
    """The words of reports for the samples of a task and for the rules beside its policy.

    Attributes:
        drawn: what an arm's row of the comparison rests on.
        gain: what the gain over the chance rule compares, after "<arm>: ".
        rules: words for the other rules, before the arm's name.
        rule: what a rule chooses; heads the column of the rules of many arms.
        others: heading of the table of the other rules of many arms.
        caption: caption of that table.
        explained: what its rows are; stands before the names of the rules.
        choices: rule -> how it chooses.
        clusters: what is resampled as a whole.
        terms: technical term, as titles of metrics and pages write it -> its explanation in a plain sentence.
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
        """Explain the rows of these rules; rules that were not measured are left out."""
        named = [
            f"{rule} ({self.choices[rule]})" if rule in self.choices else rule
            for rule in dict.fromkeys(rules)
        ]
        return f"{self.explained}: {', '.join(named) or 'none was measured'}."


@dataclass(frozen=True)
class TaskSpec:
    """A task: its arms, the modules that are found by name, and its words.

    Attributes:
        name: prefix of its catalogue names, parameters and pipelines.
        arms: arms in the order of the report; ``<name>.evaluation`` names the control.
        metrics: ``module:function`` of (metric options) -> ``MetricSuite``; the metrics with their directions.
        pipelines: module with the Kedro side of the task. ``create_pipeline()`` leads to ``<name>.examples``,
            ``create_preparation()`` from there to ``<name>.data`` and ``<name>.task``. ``create_report``, ``create_prediction``
            and ``adapt_preparation`` are optional.
        stages: stages before the arms, each ``<name>.<stage>``; the arms begin with the weights of the last stage.
        optional_stages: stages that run first of all, only if the parameters have their section ``<name>.<stage>``.
        keeping_one: arms that keep a single model, by ``training.keep``; known once the parameters are read.
        own: arm -> its own sections of parameters, beside its algorithm.
        words: the words of its report.
        curves: metric of training rows -> title of its panel, for the task's own metrics.
        outputs: array of ``Task.showcase`` -> name of this output of the model. If an output is the same for every input, page
            and terminal show a warning.
        pictures: ``module:function`` of (frames, arm=) -> a picture, uint8 [H, W, 3], for each frame of a training
            (``Task.training_frame``), which MLflow shows by step; empty for none.
        shown_arm: the arm whose samples the report shows; empty for the last arm.
        key: column of the examples' table that names an example.
        noun: the word for an example.
        classes: column of the examples' table that holds the class; its values are counted by split.
        one_of_each: ``module:function`` of (examples, row numbers) -> a table (DataFrame) or a picture (PNG or SVG, bytes) of an
            example of each class, for the page; empty if the rows of the table suffice.
        with_table: ``module:function`` of (examples, table) -> examples with this table; empty if the table is just replaced.
        sections: name -> model of the task's own sections of parameters; their modules import no torch. Their values are checked
            before anything is imported; sections that are left out here, when the pipeline is built.
        baselines: ``module:function`` of (task, data, names, rows, seed=) -> prediction rows of baselines fitted on the training
            split, with the name as ``rule``. ``<name>.evaluation.baselines`` chooses the baselines of a run.
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
    sections: Mapping[str, Any] = field(default_factory=dict)
    baselines: str = ""

    def with_stages_of(self, section: Any) -> "TaskSpec":
        """Add the optional stages that a task's parameters switch on to the spec's ``stages``."""
        given = section if isinstance(section, Mapping) else {}
        chosen = [stage for stage in self.optional_stages if given.get(stage) is not None]
        return replace(self, stages=(*chosen, *self.stages)) if chosen else self

    def build_suite(self, options: Mapping[str, float]) -> Any:
        """Build the ``MetricSuite``; raises ``pydantic.ValidationError`` if an option is unknown to the task."""
        return resolve_name(self.metrics)(options)

    def wiring(self) -> ModuleType:
        """Return the module with the Kedro side of the task."""
        return import_module(self.pipelines)
