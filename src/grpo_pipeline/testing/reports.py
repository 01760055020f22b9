"""Check the reports of a task: prediction rows with their metrics, validation, sample tables, audit and showcase."""

import json
import math
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from grpo_pipeline.statistics.metric import MetricSuite
from grpo_pipeline.tasks import TASKS, find_task
from grpo_pipeline.tasks.spec import TaskSpec
from grpo_pipeline.testing.subject import Subject

SAMPLES, ROWS = 2, 16
SEEDED = "draw from generators that are made from the seed alone"


def spec_of(task: Any) -> TaskSpec | None:
    """Find the spec of a task: by its name, else ``SPEC`` of the module ``spec`` beside it, or of its own module."""
    name = getattr(task, "name", "")
    if name in TASKS:
        return find_task(name)
    module = type(task).__module__
    for place in (f"{module.rpartition('.')[0]}.spec", module):
        if place.strip(".") == place and (place == module or find_spec(place) is not None):
            spec = getattr(import_module(place), "SPEC", None)
            if isinstance(spec, TaskSpec):
                return spec
    return None


def check_predictions_hold_the_metrics(s: Subject) -> None:
    """Check prediction rows: one per unit and rule, equal for equal seeds, with every column that the task's metrics read."""
    rows = s.call("rows", s.data, "test")[:ROWS]

    def evaluate(some: np.ndarray = rows) -> Any:
        return s.call("evaluate", s.policy, s.data, some, seed=0, n_samples=SAMPLES)

    found = evaluate()
    if not isinstance(found, pd.DataFrame) or "rule" not in found:
        got = f"columns {list(found)}" if isinstance(found, pd.DataFrame) else type(found).__name__
        s.fail(
            "evaluate",
            "return a table with the column rule",
            got,
            remedy="write one row per example and rule; the policy's own is policy",
        )
    if not found.reset_index(drop=True).equals(evaluate().reset_index(drop=True)):
        s.fail("evaluate", "return the same rows for the same seed", "others", remedy=SEEDED)
    if s.spec is None:
        s.fail(
            "name",
            "be that of a task with a SPEC, whose metrics evaluate is for",
            repr(getattr(s.task, "name", None)),
            remedy="put SPEC into the module spec beside the task, or call check_task(task, data, spec=SPEC)",
        )
    suite = s.spec.build_suite({})
    _check_units(s, found, suite)
    scored = len(_of_policy(found, suite))
    few = rows[: scored // SAMPLES]

    def only_the_first_are_scored() -> bool:
        """Check that a task given no more rows than its parameters allow scores all of them."""
        return 0 < scored == len(few) * SAMPLES and len(_of_policy(evaluate(few), suite)) == scored

    if not scored or (scored % len(rows) and not only_the_first_are_scored()):
        s.fail(
            "evaluate",
            f"return a row of every one of {len(rows)} examples",
            f"{scored} rows of the policy",
            remedy="leave none out: what is not defined is NaN",
        )


def _of_policy(found: pd.DataFrame, suite: MetricSuite) -> pd.DataFrame:
    """Select the rows of the policy, or of the first rule if the task's rules have other names."""
    named = "policy" if "policy" in set(found["rule"]) else suite.rules[0]
    return found[found["rule"] == named]


def _check_units(s: Subject, found: pd.DataFrame, suite: MetricSuite) -> None:
    unit = suite.unit.column
    needed = [unit, *suite.unit.facts, *suite.required]
    missing = [name for name in needed if name not in found]
    if missing:
        s.fail(
            "evaluate",
            f"return the columns {', '.join(dict.fromkeys(needed))}",
            f"none called {', '.join(missing)}",
            remedy="they are the unit, its facts and what the metric suite requires",
        )
    twice = found.duplicated([unit, "rule"])
    if twice.any():
        s.fail(
            "evaluate",
            f"return one row per {unit} and rule",
            f"{found[unit][twice].iloc[0]} twice under {found['rule'][twice].iloc[0]}",
            remedy="average over samples, or name each sample",
        )
    for name in suite.finite:
        if found[name].isna().any():
            s.fail(
                "evaluate",
                f"fill {name} in every row",
                "NaN",
                remedy="the metric suite calls it finite",
            )
    absent: list[str] = []
    prepared = suite.prepare(suite.combine(found))
    parts = [part.reset_index(drop=True) for _, part in prepared.groupby("rule")]
    asked = [(part, _Asked(part, absent), np.ones((1, len(part)))) for part in parts]
    for name, metric in suite.metrics.items():
        absent.clear()
        n = 0
        try:
            for part, noting, once in asked:
                n += metric.count(noting)
                metric(part, once)
        except KeyError as error:
            absent[:], n = [str(error).strip("'\"")], 0
        if not n and absent:
            s.fail(
                "evaluate",
                f"return what the metric {name} is computed from",
                f"no column {absent[0]}",
                remedy=f"add the column, or remove {name} from the metric suite",
            )


class _Asked(pd.DataFrame):
    """A table that records requests for columns that it lacks."""

    _metadata = ["missing"]  # noqa: RUF012 pandas looks for a list

    def __init__(self, rows: pd.DataFrame, missing: list[str]) -> None:
        super().__init__(rows)  # type: ignore[call-arg]
        self.missing = missing

    def __contains__(self, name: object) -> bool:  # type: ignore[misc]  # final in the stubs alone
        """Check whether there is a column, and record a missing one."""
        is_there = super().__contains__(name)
        if not is_there:
            self.missing.append(str(name))
        return is_there


def check_validation_is_numbers(s: Subject) -> None:
    """Check that validation gives the same finite numbers for the same seed."""
    rows = s.call("rows", s.data, "val")[:ROWS]
    one, again = (
        s.call("validate", s.policy, s.data, rows, seed=0, n_samples=SAMPLES) for _ in range(2)
    )
    is_plain = isinstance(one, Mapping) and all(isinstance(v, int | float) for v in one.values())
    if not is_plain or not one:
        s.fail("validate", "return numbers by name", repr(one)[:100], remedy="use float(...)")
    bad = [name for name, value in one.items() if math.isinf(value)]
    if bad:
        s.fail(
            "validate",
            "return finite numbers",
            f"{bad[0]} = {one[bad[0]]}",
            remedy="correct the mean",
        )
    same = all(value == again.get(name) or math.isnan(value) for name, value in one.items())
    if not same:
        s.fail("validate", "return the same for the same seed", "other numbers", remedy=SEEDED)


def check_tables_have_a_row_per_sample(s: Subject) -> None:
    """Check that ``tabulate`` describes each sample, in the order n = p * G + g."""
    found, samples = s.call("tabulate", s.data, s.batch, s.rollouts), s.prompts * s.group_size
    if not isinstance(found, pd.DataFrame) or len(found) != samples or len(found.columns) < 2:
        got = (
            f"{len(found)} rows with the columns {list(found)}"
            if isinstance(found, pd.DataFrame)
            else type(found).__name__
        )
        s.fail(
            "tabulate",
            f"return one row for each of {samples} samples, with what names and describes it",
            got,
            remedy="repeat what is per prompt G times: row n = p * G + g",
        )
    numbers = np.tile(np.arange(s.group_size), s.prompts)
    if "sample" in found and not np.array_equal(found["sample"].to_numpy(), numbers):
        s.fail(
            "tabulate",
            "number the samples of each prompt 0, 1, …, row n = p * G + g",
            str(found["sample"].tolist()),
            remedy="use np.repeat for prompts and np.tile for samples",
        )


def check_audit_rows_fit_their_plan(s: Subject) -> None:
    """Check that the audit scores every policy of its plan, with the reward and its components."""
    plan, rows = s.task.audit_plan, s.call("rows", s.data, "val")[:ROWS]
    found = s.call("audit", s.policy, s.data, rows, seed=0, n_samples=SAMPLES)
    weighed = [f"reward_{name}" for name, weight in plan.weights.items() if weight]
    needed = ["policy", "sample", "reward", plan.example, plan.cluster, *weighed, *plan.metrics]
    missing = [name for name in needed if name not in found]
    if missing:
        s.fail(
            "audit",
            f"return the columns {', '.join(dict.fromkeys(needed))}",
            f"none called {', '.join(missing)}",
            remedy="docs/reward_audit.md lists them",
        )
    if set(found["policy"]) != set(plan.policies):
        s.fail(
            "audit",
            f"score the policies {', '.join(plan.policies)}",
            ", ".join(sorted(set(found["policy"]))),
            remedy="name the same in audit_plan",
        )


def check_pictures_are_arrays_of_examples(s: Subject) -> None:
    """Check showcase and frames: arrays by name; frames are tensors on the CPU, without a graph."""
    rows = s.call("rows", s.data, "val")[:2]
    shown = s.call("showcase", s.policy, s.data, rows, seed=0)
    bad = [
        name
        for name, value in dict(shown).items()
        if not isinstance(value, np.ndarray) or (value.dtype == object and value.ndim == 0)
    ]
    if bad:
        s.fail("showcase", "return numpy arrays by name", bad[0], remedy="use .cpu().numpy()")
    frame = s.call("training_frame", s.policy, s.data, rows, seed=0)
    for name, value in dict(frame).items():
        if not isinstance(value, Tensor) or value.device.type != "cpu" or value.requires_grad:
            s.fail(
                "training_frame",
                "return tensors on the CPU without a graph",
                name,
                remedy="use .detach().cpu()",
            )


def check_calibration_is_plain(s: Subject) -> None:
    """Check that the result of calibration can be stored as JSON."""
    found = s.call("calibrate", s.policy, s.data, s.call("rows", s.data, "val"), seed=0)
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError) as error:
        s.fail(
            "calibrate", "return what JSON can hold", str(error), remedy="use float, list and dict"
        )
