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
from parameter_models import (
    GRAPH_ARMS,
    TALK_ARMS,
    TASKS,
    build_attention,
    build_dialogue,
    build_molecule_task,
    read_sections,
    sections,
)
from pydantic import ValidationError

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.pipelines.evaluation.nodes import build_suite
from grpo_pipeline.pipelines.experiments.compare.nodes import arrange_cells
from grpo_pipeline.pipelines.experiments.trials.arms import CompareParams
from grpo_pipeline.pipelines.params import EvaluationParams
from grpo_pipeline.runs.replacing import ReplacingConfigLoader
from grpo_pipeline.settings import CONFIG_LOADER_ARGS
from grpo_pipeline.tasks.attention.data.params import DataParams

ROOT = Path(__file__).resolve().parents[1]

ENVIRONMENTS = sorted(folder.name for folder in (ROOT / "conf").iterdir() if folder.is_dir())


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_section_has_a_model_and_passes_it(env: str) -> None:
    read_sections(ROOT / "conf", env, "attention")


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_the_model_of_an_environment_can_be_built_and_trained(env: str) -> None:
    found = read_sections(ROOT / "conf", env, "attention")
    model, data = found["model"], found["data"]
    task = build_attention(found)
    assert model.points <= task.grid**2
    assert model.glimpse_size < data.image_size
    assert data.source == "manifest" or found["phantom"].image_size >= data.image_size


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_section_of_the_dialogue_task_passes_and_can_be_trained(env: str) -> None:
    read = read_sections(ROOT / "conf", env, "dialogue")
    build_dialogue(read)
    assert read["training"].device == read["warm_start.training"].device
    evaluation = read["evaluation"]
    assert {evaluation.control, evaluation.baseline_arm} <= set(TALK_ARMS)
    assert {evaluation.headline_rule, evaluation.chance_rule} <= set(
        build_suite(evaluation.task, evaluation.metric_options).rules
    )


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_section_of_the_molecule_task_passes_and_can_be_trained(env: str) -> None:
    read = read_sections(ROOT / "conf", env, "molecules")
    build_molecule_task(read)
    for stage in ("warm_start.training", "eager.training"):
        assert read[stage].device == read["training"].device
    # What makes the arms comparable: they differ in their learning rates and in nothing else.
    loops = [read[name].model_dump(exclude={"optimizer": {"learning_rates"}}) for name in ("training", "eager.training")]
    assert loops[0] == loops[1]
    evaluation = read["evaluation"]
    assert {evaluation.control, evaluation.baseline_arm} <= set(GRAPH_ARMS)
    assert {evaluation.headline_rule, evaluation.chance_rule} <= set(
        build_suite(evaluation.task, evaluation.metric_options).rules
    )
    assert read["reward_audit"].sets == read["training"].group_size


def test_a_misspelt_parameter_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "base").symlink_to(ROOT / "conf" / "base")
    file = tmp_path / "wrong" / "parameters" / "attention.yml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump({"attention": {"training": {"groupsize": 4}}}))
    with pytest.raises(ValidationError, match="groupsize"):
        TrainingParams(**sections(tmp_path, "wrong")["training"])


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
    document = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
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
    written = yaml.safe_load((tmp_path / "clinic" / "parameters" / "attention_data.yml").read_text())["attention"]["data"]
    assert written["columns"].keys() == set(type(data.columns).model_fields)


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_arm_of_a_comparison_passes_the_models(env: str) -> None:
    parameters = ReplacingConfigLoader(str(ROOT / "conf"), env=env, **CONFIG_LOADER_ARGS)["parameters"]
    task = parameters["attention"]
    plan = arrange_cells(CompareParams(**task["compare"]), EvaluationParams(**task["evaluation"]), parameters)
    seeds = task["compare"]["seeds"]
    assert {cell.key for cell in plan.cells} == {f"{arm}.seed{seed}" for arm in plan.arms for seed in seeds}
    settings = [str(arm.parameters) for arm in plan.arms.values()]
    assert len(set(settings)) == len(settings), "two arms are the same"
