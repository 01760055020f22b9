"""Every environment's parameters pass the models that read them, and describe a model that can be built."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import BaseModel, ValidationError
from tiny_chemist import make_data

from grpo_pipeline.config_loader import ReplacingConfigLoader
from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.pipelines.audit.gradient_flow import GradientFlowParams
from grpo_pipeline.pipelines.audit.reward_audit_params import RewardAuditParams
from grpo_pipeline.pipelines.compare.nodes import arrange_cells
from grpo_pipeline.pipelines.compare.params import CompareParams
from grpo_pipeline.pipelines.cross_validation.params import CrossValidationParams
from grpo_pipeline.pipelines.evaluation.params import EvaluationParams
from grpo_pipeline.pipelines.evaluation.suites import build_suite
from grpo_pipeline.settings import CONFIG_LOADER_ARGS
from grpo_pipeline.tasks.attention.augment_params import AugmentationParams
from grpo_pipeline.tasks.attention.build import AttentionTask
from grpo_pipeline.tasks.attention.data_params import DataParams, SplitParams
from grpo_pipeline.tasks.attention.model_params import ModelParams, RewardParams, SupervisedParams
from grpo_pipeline.tasks.attention.phantom_params import PhantomParams
from grpo_pipeline.tasks.attention.predict_params import PredictParams
from grpo_pipeline.tasks.dialogue.build import build_task, check_arms
from grpo_pipeline.tasks.dialogue.data_params import DialogueDataParams, DialogueSplitParams, RetrievalParams
from grpo_pipeline.tasks.dialogue.persona_params import PersonaParams
from grpo_pipeline.tasks.dialogue.reader_params import ReaderSection, ReplyParams
from grpo_pipeline.tasks.dialogue.reward_params import RewardParams as DialogueRewardParams
from grpo_pipeline.tasks.dialogue.task_params import PromptParams
from grpo_pipeline.tasks.dialogue.task_params import SupervisedParams as DialogueSupervisedParams
from grpo_pipeline.tasks.molecules.build import build_task as build_molecules
from grpo_pipeline.tasks.molecules.build import check_arms as check_molecule_arms
from grpo_pipeline.tasks.molecules.data_params import GeneratorParams, MoleculeDataParams, MoleculeSplitParams
from grpo_pipeline.tasks.molecules.diffusion import Diffusion
from grpo_pipeline.tasks.molecules.diffusion_params import DenoiserParams, NoiseParams, TrajectoryParams, X0LossParams
from grpo_pipeline.tasks.molecules.reward_params import MoleculeRewardParams
from grpo_pipeline.tasks.molecules.task_params import GraphPromptParams, SamplingParams

ROOT = Path(__file__).resolve().parents[1]

ENVIRONMENTS = sorted(folder.name for folder in (ROOT / "conf").iterdir() if folder.is_dir())
MODELS: dict[str, type[BaseModel]] = {
    "phantom": PhantomParams,
    "data": DataParams,
    "split": SplitParams,
    "model": ModelParams,
    "reward": RewardParams,
    "supervised_loss": SupervisedParams,
    "augmentation": AugmentationParams,
    "training": TrainingParams,
    "evaluation": EvaluationParams,
    "predict": PredictParams,
    "gradient_flow": GradientFlowParams,
    "reward_audit": RewardAuditParams,
    "compare": CompareParams,
    "cross_validation": CrossValidationParams,
    "supervised.algorithm": AlgorithmParams,
    "grpo.algorithm": AlgorithmParams,
}
TALK_ARMS = ("warm_start", "supervised", "reinforce", "grpo")
TALK_MODELS: dict[str, type[BaseModel]] = {
    "personas": PersonaParams,
    "data": DialogueDataParams,
    "split": DialogueSplitParams,
    "retrieval": RetrievalParams,
    "reader": ReaderSection,
    "prompt": PromptParams,
    "replies": ReplyParams,
    "rewards": DialogueRewardParams,
    "supervised_loss": DialogueSupervisedParams,
    "gradient_flow": GradientFlowParams,
    "reward_audit": RewardAuditParams,
    "compare": CompareParams,
    "training": TrainingParams,
    "warm_start.training": TrainingParams,
    "evaluation": EvaluationParams,
    **{f"{arm}.algorithm": AlgorithmParams for arm in TALK_ARMS},
}
GRAPH_ARMS = ("warm_start", "supervised", "grpo", "eager")
GRAPH_MODELS: dict[str, type[BaseModel]] = {
    "generator": GeneratorParams,
    "data": MoleculeDataParams,
    "split": MoleculeSplitParams,
    "prompt": GraphPromptParams,
    "noise": NoiseParams,
    "denoiser": DenoiserParams,
    "trajectory": TrajectoryParams,
    "rewards": MoleculeRewardParams,
    "supervised_loss": X0LossParams,
    "sampling": SamplingParams,
    "gradient_flow": GradientFlowParams,
    "reward_audit": RewardAuditParams,
    "training": TrainingParams,
    "warm_start.training": TrainingParams,
    "eager.training": TrainingParams,
    "eager.trajectory": TrajectoryParams,
    "evaluation": EvaluationParams,
    **{f"{arm}.algorithm": AlgorithmParams for arm in GRAPH_ARMS},
}


def sections(conf: Path, env: str, task: str = "attention") -> dict[str, Any]:
    """Return a task's sections as Kedro resolves them, those of its arms as ``<arm>.algorithm``."""
    parameters = ReplacingConfigLoader(str(conf), env=env, **CONFIG_LOADER_ARGS)["parameters"][task]
    flat = {name: section for name, section in parameters.items() if "algorithm" not in (section or {})}
    arms = {name: section for name, section in parameters.items() if "algorithm" in (section or {})}
    return flat | {f"{arm}.{name}": part for arm, section in arms.items() for name, part in section.items()}


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_section_has_a_model_and_passes_it(env: str) -> None:
    found = sections(ROOT / "conf", env)
    assert found.keys() == MODELS.keys()
    for name, section in found.items():
        if section is not None:
            MODELS[name](**section)


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_the_model_of_an_environment_can_be_built_and_trained(env: str) -> None:
    found = {name: MODELS[name](**section) for name, section in sections(ROOT / "conf", env).items() if section is not None}
    model, data, training = found["model"], found["data"], found["training"]
    task = AttentionTask(model, found["reward"], found["supervised_loss"], data.image_size, torch.device("cpu"))
    groups = task.parameter_groups(task.build_policy(0))
    assert groups.keys() <= training.optimizer.learning_rates.keys()
    assert model.points <= task.grid**2
    assert model.glimpse_size < data.image_size
    assert data.source == "manifest" or found["phantom"].image_size >= data.image_size


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_section_of_the_dialogue_task_passes_and_can_be_trained(env: str) -> None:
    found = sections(ROOT / "conf", env, "dialogue")
    assert found.keys() == TALK_MODELS.keys()
    read: dict[str, Any] = {name: TALK_MODELS[name].model_validate(section) for name, section in found.items()}
    parts = (read[name] for name in ("prompt", "replies", "rewards", "supervised_loss"))
    task = build_task(read["reader"].params, *parts, execution=read["training"])
    check_arms(task, [read[f"{arm}.algorithm"] for arm in TALK_ARMS])
    groups = task.parameter_groups(task.build_policy(0))
    for stage in ("training", "warm_start.training"):
        assert groups.keys() <= read[stage].optimizer.learning_rates.keys()
    assert read["training"].device == read["warm_start.training"].device
    evaluation = read["evaluation"]
    assert {evaluation.control, evaluation.baseline_arm} <= set(TALK_ARMS)
    assert {evaluation.headline_rule, evaluation.chance_rule} <= set(
        build_suite(evaluation.task, evaluation.metric_options).rules
    )


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_section_of_the_molecule_task_passes_and_can_be_trained(env: str) -> None:
    found = sections(ROOT / "conf", env, "molecules")
    assert found.keys() == GRAPH_MODELS.keys()
    read: dict[str, Any] = {name: GRAPH_MODELS[name].model_validate(section) for name, section in found.items()}
    diffusion = Diffusion(*(read[name] for name in ("noise", "denoiser", "trajectory", "supervised_loss")))
    sampled = (read[name] for name in ("prompt", "rewards", "sampling"))
    task = build_molecules(diffusion, *sampled, make_data(), execution=read["training"])
    own = {"eager": read["eager.trajectory"]}
    check_molecule_arms(task, [(read[f"{arm}.algorithm"], own.get(arm, read["trajectory"])) for arm in GRAPH_ARMS])
    groups = task.parameter_groups(task.build_policy(0))
    for stage in ("training", "warm_start.training", "eager.training"):
        assert groups.keys() <= read[stage].optimizer.learning_rates.keys()
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


def test_the_readmes_example_environment_passes(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "base").symlink_to(ROOT / "conf" / "base")
    for name, block in re.findall(r"^`conf/(mine/\S+\.yml)`\n\n```yaml\n(.*?)^```", readme, re.DOTALL | re.MULTILINE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(block, encoding="utf-8")
    data = DataParams(**sections(tmp_path, "mine")["data"])
    assert data.root == "../clinic_b"
    assert (data.columns.label, data.columns.region_mask, data.columns.clinical) == ("diagnosis", None, ())
    written = yaml.safe_load((tmp_path / "mine" / "parameters" / "attention_data.yml").read_text())["attention"]["data"]
    assert written["columns"].keys() == set(type(data.columns).model_fields)


def test_the_readmes_defaults_are_those_of_base() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = sections(ROOT / "conf", "base")
    stated = re.findall(r"^\| `attention\.(\w+)\.(\w+)` \| `?([\w.]+)`? \|", readme, re.MULTILINE)
    assert len(stated) > 4
    assert {(section, key): value for section, key, value in stated} == {
        (section, key): str(found[section][key]) for section, key, _ in stated
    }


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_arm_of_a_comparison_passes_the_models(env: str) -> None:
    parameters = ReplacingConfigLoader(str(ROOT / "conf"), env=env, **CONFIG_LOADER_ARGS)["parameters"]
    task = parameters["attention"]
    plan = arrange_cells(CompareParams(**task["compare"]), EvaluationParams(**task["evaluation"]), parameters)
    seeds = task["compare"]["seeds"]
    assert {cell.key for cell in plan.cells} == {f"{arm}.seed{seed}" for arm in plan.arms for seed in seeds}
    settings = [str(arm.parameters) for arm in plan.arms.values()]
    assert len(set(settings)) == len(settings), "two arms are the same"
