"""A sound task passes in every arm; a missing or a superfluous detach, and a reward with a graph, are each caught by name."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_attention as attention
import yaml
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from torch.nn import functional as F

from grpo_pipeline.core.params import AlgorithmParams
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines import gradient_flow
from grpo_pipeline.pipelines.gradient_flow import GradientFlowError
from grpo_pipeline.pipelines.params import GradientFlowParams
from grpo_pipeline.pipelines.step import collect, update
from grpo_pipeline.pipelines.training.loop import StepRunner, rows_of_step
from grpo_pipeline.tasks.attention.model.sam import cell_centres
from grpo_pipeline.tasks.attention.task import AttentionTask

DECODERS = {"mask_decoder": "none", "class_decoder": "none"}
POLICY = {"encoder": "gradient", "policy_head": "gradient", "value_head": "none", **DECODERS}
EXPECTED = {
    "supervised": {
        "encoder": "gradient",
        "policy_head": "none",
        "value_head": "none",
        "mask_decoder": "gradient",
        "class_decoder": "gradient",
    },
    "policy": POLICY,
    "kl": POLICY,
    "entropy": POLICY,
    "value": {"value_head": "gradient", **DECODERS},
}
WARM = GradientFlowParams(warmup_steps=3, expected=EXPECTED)
ENTRIES = """
"attention.{arm}.gradient_flow":
  type: pandas.CSVDataset
  filepath: DATA/{arm}/gradient_flow.csv
  save_args: {index: false}
"attention.{arm}.gradient_flow_figure":
  type: grpo_pipeline.datasets.figure.FigureDataset
  filepath: DATA/{arm}/gradient_flow.png
"attention.{arm}.gradient_flow.{name}":
  type: MemoryDataset
  copy_mode: assign
"""


class LeakingPolicyLoss(AttentionTask):
    """Adds a confidence of the decoder that nobody detached: the value is the same, the gradient is not."""

    def score(self, policy, context, rollouts, *, temperature):
        scores = super().score(policy, context, rollouts, temperature=temperature)
        confidence = policy.class_decoder(context.images, cell_centres(rollouts.actions, self.grid))
        return replace(scores, logprobs=scores.logprobs + (confidence - confidence.detach())[..., None])


class PolicyCutFromTheEncoder(AttentionTask):
    def score(self, policy, context, rollouts, *, temperature):
        return super().score(policy, self.detach(context), rollouts, temperature=temperature)


class SupervisedLossOnThePolicyHead(AttentionTask):
    def supervised_loss(self, policy, context, batch, outcomes):
        logits, _ = policy.policy(self.detach(context).features, context.texture)
        return super().supervised_loss(policy, context, batch, outcomes) + 1e-6 * logits.square().mean()


class AttachedReward(AttentionTask):
    def reward(self, batch, rollouts, outcomes):
        parts, weights = super().reward(batch, rollouts, outcomes)
        loss = F.binary_cross_entropy_with_logits(outcomes.class_logits, batch.label, reduction="none")
        return parts | {"class": -loss}, weights


def broken(kind: type[AttentionTask]) -> AttentionTask:
    return kind(**vars(attention.make_task()))


def catalog_of(folder: Path, task: AttentionTask, arm: str, algorithm: AlgorithmParams) -> DataCatalog:
    """Hold the committed patterns of an arm beside the audit's own, so that none of them may take the other's datasets."""
    committed = (attention.CONF / "base" / "catalog" / "tasks.yml").read_text()
    for name, value in {"${globals:data}": str(folder), "{task}": "attention", "{folder}": "attention"}.items():
        committed = committed.replace(name, value)
    catalog = DataCatalog.from_config(yaml.safe_load(committed) | yaml.safe_load(ENTRIES.replace("DATA", str(folder))))
    values = {
        "attention.task": task,
        "attention.data": attention.make_data(),
        f"params:attention.{arm}.algorithm": algorithm,
        "params:attention.training": attention.training_params(batch_size=4),
        "params:attention.gradient_flow": WARM,
        "params:seed": 0,
    }
    for name, value in values.items():
        catalog[name] = MemoryDataset(value, copy_mode="assign")
    return catalog


def run(folder: Path, task: AttentionTask, arm: str = "grpo", **algorithm: object) -> None:
    catalog = catalog_of(folder, task, arm, attention.algorithm_params(arm, **algorithm))
    SequentialRunner().run(gradient_flow.create_pipeline("attention", arm), catalog)


def saved(folder: Path) -> pd.DataFrame:
    (path,) = folder.rglob("gradient_flow.csv")
    return pd.read_csv(path)


def figure_of(folder: Path) -> bytes:
    (path,) = folder.rglob("gradient_flow.png")
    return path.read_bytes()


def warm_state(task: AttentionTask, algorithm: AlgorithmParams) -> TrainState:
    """Train three steps by hand."""
    training, data = attention.training_params(batch_size=4), attention.make_data()
    state = attention.make_state(task, data, algorithm, training)
    for step in range(3):
        rows = rows_of_step(task.rows(data, "train"), step, batch_size=4, seed=0)
        state, _ = StepRunner(task, algorithm, training)(state, task.make_batch(data, rows))
    return state


@pytest.mark.parametrize("decoder", ["glimpse", "global"])
def test_a_sound_task_passes_in_the_reward_arm(tmp_path, decoder):
    run(tmp_path, attention.make_task(class_decoder=decoder))
    table = saved(tmp_path)
    assert list(table.columns) == ["term", "component", "grad_norm", "expected", "agrees"]
    assert table["agrees"].all()
    norms = table[table["term"] != "reward"].pivot(index="term", columns="component", values="grad_norm")
    assert set(norms.index) == {"supervised", "policy", "kl", "entropy", "value"}
    decoders = ["mask_decoder", "class_decoder"]
    assert (norms.loc[["policy", "kl", "entropy", "value"], decoders] == 0).all(axis=None)
    assert (norms.loc[["policy", "kl", "entropy"], ["policy_head", "encoder"]] > 0).all(axis=None)
    assert (norms.loc["supervised", ["policy_head", "value_head"]] == 0).all()
    assert (norms.loc["supervised", ["encoder", *decoders]] > 0).all()
    assert table.loc[table["term"] == "reward", ["component", "grad_norm"]].values.tolist() == [["class", 0.0], ["heatmap", 0.0]]
    assert figure_of(tmp_path).startswith(b"\x89PNG")


def test_the_control_has_a_supervised_term_alone(tmp_path):
    run(tmp_path, attention.make_task(), "supervised")
    table = saved(tmp_path)
    assert list(dict.fromkeys(table["term"])) == ["supervised", "reward"]
    assert table["agrees"].all()
    norms = dict(zip(table["component"], table["grad_norm"], strict=True))
    assert norms["policy_head"] == norms["value_head"] == 0
    assert min(norms["encoder"], norms["mask_decoder"], norms["class_decoder"]) > 0


@pytest.mark.parametrize(
    ("kind", "odd", "sentence"),
    [
        (LeakingPolicyLoss, [("policy", "class_decoder")], "policy -> class_decoder [0-9.e-]+ where none is expected;"),
        (PolicyCutFromTheEncoder, [(t, "encoder") for t in ("policy", "entropy", "kl")], "policy -> encoder 0 where gradient"),
        (SupervisedLossOnThePolicyHead, [("supervised", "policy_head")], "supervised -> policy_head [0-9.e-]+ where none is"),
        (AttachedReward, [("reward", "class")], "got a graph in reward component class;"),
    ],
)
def test_a_broken_task_is_caught_after_table_and_figure_are_saved(tmp_path, kind, odd, sentence):
    with pytest.raises(GradientFlowError, match=sentence):
        run(tmp_path, broken(kind))
    table = saved(tmp_path)
    wrong = table[~table["agrees"]]
    assert set(zip(wrong["term"], wrong["component"], strict=True)) == set(odd)
    assert figure_of(tmp_path).startswith(b"\x89PNG")


def test_a_policy_at_its_start_is_not_taken_for_sound(tmp_path):
    catalog = catalog_of(tmp_path, attention.make_task(), "grpo", attention.algorithm_params())
    catalog["params:attention.gradient_flow"] = MemoryDataset(WARM.model_copy(update={"warmup_steps": 0}), copy_mode="assign")
    with pytest.raises(
        GradientFlowError, match="policy -> encoder 0 where gradient is expected.*raise gradient_flow.warmup_steps"
    ):
        SequentialRunner().run(gradient_flow.create_pipeline("attention", "grpo"), catalog)


def test_norms_are_those_of_a_backward_pass_per_term(tmp_path):
    run(tmp_path, attention.make_task())
    got = saved(tmp_path).set_index(["term", "component"])["grad_norm"]
    task, algorithm, training = attention.make_task(), attention.algorithm_params(), attention.training_params(batch_size=4)
    state = warm_state(task, algorithm)
    batch = task.make_batch(attention.make_data(), rows_of_step(np.arange(8), 3, batch_size=4, seed=0))
    context = task.encode(state.policy, batch)
    rollouts, temperature = collect.sample_rollouts(algorithm, training, task, state, context)
    experience = attention.judge(task, algorithm, state, task.replicate(batch, 4), context, rollouts, temperature)
    terms, diagnostics = update.policy_terms(algorithm, training, task, state, experience, 0)
    losses = update.mix_losses(algorithm, task, state, terms, update.supervised_term(task, state, experience, 0), diagnostics)
    for term, loss in losses.terms.items():
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward(retain_graph=True)
        for name, group in task.parameter_groups(state.policy).items():
            squares = sum(float(p.grad.double().square().sum()) for p in group if p.grad is not None)
            assert got[term, name] == pytest.approx(losses.weights[term] * squares**0.5, rel=1e-6), (term, name)


def test_a_term_that_the_arm_never_weighs_is_left_out(tmp_path):
    run(tmp_path, attention.make_task(), entropy_weight=0.0, value_weight=0.0)
    assert list(dict.fromkeys(saved(tmp_path)["term"])) == ["supervised", "policy", "kl", "reward"]


TERMS = pd.DataFrame(
    [("policy", "encoder", 2.0), ("policy", "decoder", 0.5), ("value", "encoder", 0.0)],
    columns=["term", "component", "grad_norm"],
)
REWARDS = pd.DataFrame([("reward", "f1", 0.0), ("reward", "rouge", math.nan)], columns=TERMS.columns)


def judge(expected):
    training = attention.training_params(optimizer={"learning_rates": {"frozen": 0.1}})
    return gradient_flow.judge_flow(GradientFlowParams(warmup_steps=0, expected=expected), training, TERMS, REWARDS)


def test_judge_golden():
    table = judge({"policy": {"encoder": "gradient", "decoder": "none", "frozen": "none"}, "kl": {"encoder": "gradient"}})
    assert table["expected"].tolist() == ["gradient", "none", "any", "none", "none"]
    assert table["agrees"].tolist() == [True, False, True, True, False]
    with pytest.raises(GradientFlowError) as caught:
        gradient_flow.require_flow(table, b"")
    assert str(caught.value).startswith("each loss term must teach what gradient_flow.expected says, got ")
    assert "got policy -> decoder 0.5 where none is expected; a graph in reward component rouge; add or remove" in str(
        caught.value
    )
    assert gradient_flow.require_flow(table[table["agrees"]], b"") is None


def test_a_component_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"gradient_flow.expected.policy must name components of the task, .*got 'decodr'"):
        judge({"policy": {"decodr": "none"}})


def test_the_audit_reads_what_an_arm_reads_and_writes_two_things():
    pipeline = gradient_flow.create_pipeline("dialogue", "ppo")
    assert pipeline.inputs() == {
        "dialogue.task", "dialogue.data", "params:dialogue.training", "params:dialogue.gradient_flow", "params:seed",
        "params:dialogue.ppo.algorithm",
    }  # fmt: skip
    own = {
        name for name in pipeline.all_outputs() if not name.startswith(("dialogue.ppo.gradient_flow.", "dialogue.ppo.audited_"))
    }
    assert own == {"dialogue.ppo.gradient_flow", "dialogue.ppo.gradient_flow_figure"}
    (summary,) = [node for node in pipeline.nodes if node.name == "dialogue.ppo.require_flow"]
    assert set(summary.inputs) == own  # so that it comes after both are saved
    assert not [node.name for node in pipeline.nodes if "apply_update" in node.name]
