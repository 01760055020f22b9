"""Every environment's parameters pass the models that read them, and describe a model that can be built."""

import copy
import functools
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from parameter_models import BUILDERS, TASKS, build_attention, read_parameters, read_sections, sections
from pydantic import ValidationError

from grpo_pipeline.pipelines.evaluation.suite import build_suite
from grpo_pipeline.pipelines.experiments.compare.nodes import arrange_trials
from grpo_pipeline.pipelines.experiments.trials.trial_params import CompareParams
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.tasks.attention.data.params import DataParams

ROOT = Path(__file__).resolve().parents[1]

ENVIRONMENTS = sorted(folder.name for folder in (ROOT / "conf").iterdir() if folder.is_dir())


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_section_has_a_model_and_passes_it_and_the_task_can_be_trained(env: str, task: str) -> None:
    read = read_sections(ROOT / "conf", env, task)
    on_this_machine = read["training"].model_copy(update={"device": "cpu"})
    BUILDERS[task](read | {"training": on_this_machine})
    assert len({section.device for name, section in read.items() if name.endswith("training")}) == 1
    evaluation = read["evaluation"]
    assert {f"{arm}.algorithm" for arm in (evaluation.control, evaluation.baseline_arm)} <= read.keys()
    rules = build_suite(evaluation.task, evaluation.metric_options).rules
    assert {evaluation.headline_rule, evaluation.chance_rule} <= set(rules)


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_the_numbers_of_an_environment_fit_each_other(env: str) -> None:
    found = read_sections(ROOT / "conf", env, "attention")
    model, data = found["model"], found["data"]
    assert model.points <= build_attention(found).grid ** 2
    assert model.class_decoder.kind != "glimpse" or model.class_decoder.size < data.image_size
    assert data.source == "manifest" or found["phantom"].image_size >= data.image_size
    read = read_sections(ROOT / "conf", env, "molecules")
    # What makes the arms comparable: they differ in their learning rates and in nothing else.
    loops = [read[name].model_dump(exclude={"optimizer": {"learning_rates"}}) for name in ("training", "eager.training")]
    assert loops[0] == loops[1]
    assert read["reward_audit"].n_samples == read["training"].group_size


@pytest.mark.parametrize("task", TASKS)
def test_a_number_that_is_none_does_not_pass(task: str) -> None:
    """``.nan`` and ``.inf`` pass many a bound; no parameter may be one. What an arm sets is read later."""
    accepted = []
    for name, section in sections(ROOT / "conf", "base", task).items():
        for path in [] if section is None else numbers(section):
            for value in (float("nan"), float("inf"), -float("inf")):
                wrong = copy.deepcopy(section)
                functools.reduce(operator.getitem, path[:-1], wrong)[path[-1]] = value
                try:
                    TASKS[task][name].model_validate(wrong)
                except ValidationError:
                    continue
                if not {"set", "metric_options"} & set(path):
                    accepted.append((name, *path, value))
    assert accepted == []


def numbers(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every number."""
    if isinstance(values, dict | list):
        for key, inner in values.items() if isinstance(values, dict) else enumerate(values):
            yield from numbers(inner, (*path, key))
    elif isinstance(values, int | float) and not isinstance(values, bool):
        yield path


def test_the_example_of_images_of_ones_own_passes(tmp_path: Path) -> None:
    document = (ROOT / "docs/attention/data.md").read_text(encoding="utf-8")
    (tmp_path / "base").symlink_to(ROOT / "conf" / "base")
    for name, block in re.findall(r"^`conf/(clinic/\S+\.yml)`\n\n```yaml\n(.*?)^```", document, re.DOTALL | re.MULTILINE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(block, encoding="utf-8")
    data = DataParams(**sections(tmp_path, "clinic")["data"])
    assert data.root == "../clinic_a"
    assert (data.columns.label, data.columns.lesion_mask, data.columns.clinical) == (
        "diagnosis",
        None,
        ("age_years", "psa_ng_ml"),
    )
    written = yaml.safe_load((tmp_path / "clinic/parameters.yml").read_text())["attention"]["data"]
    assert written["columns"].keys() == set(type(data.columns).model_fields)


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_arm_of_a_comparison_passes_the_models(env: str) -> None:
    parameters = read_parameters(ROOT / "conf", env)
    task = parameters["attention"]
    plan = arrange_trials(CompareParams(**task["compare"]), EvaluationParams(**task["evaluation"]), parameters)
    seeds = task["compare"]["seeds"]
    assert {trial.key for trial in plan.trials} == {f"{arm}.seed{seed}" for arm in plan.arms for seed in seeds}
    settings = [f"{arm.description.baseline} {arm.parameters}" for arm in plan.arms.values()]
    assert len(set(settings)) == len(settings), "two arms are the same"
