"""A sound task passes in every arm; a missing or a superfluous detach, and a reward with a graph, are each caught by name."""

import json
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
from loss_terms import mixed_losses
from torch.nn import functional as F

from grpo_pipeline.pipelines import gradient_flow
from grpo_pipeline.pipelines.gradient_flow import GradientFlowError
from grpo_pipeline.pipelines.params import GradientFlowParams
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.pipelines.training.order import rows_of_step
from grpo_pipeline.tasks.attention.model.sam import cell_centres
from grpo_pipeline.tasks.attention.task import AttentionTask

DECODERS = {"mask_decoder": "none", "class_decoder": "none"}
POLICY = {"encoder": "gradient", "policy_head": "gradient", "value_head": "none", **DECODERS}
EXPECTED = {
    "supervised": {"encoder": "gradient", "policy_head": "none", "value_head": "none"} | dict.fromkeys(DECODERS, "gradient"),
    **dict.fromkeys(("policy", "kl", "entropy"), POLICY),
    "value": {"value_head": "gradient", **DECODERS},
}
WARM = GradientFlowParams(warmup_steps=3, expected=EXPECTED)
OWN = {
    "{arm}.gradient_flow": {"type": "pandas.CSVDataset", "filepath": "DATA/{arm}/gradient_flow.csv"},
    "{arm}.gradient_flow_figure": {
        "type": "grpo_pipeline.datasets.figure.FigureDataset", "filepath": "DATA/{arm}/gradient_flow.png",
    },
    "{arm}.gradient_flow.{name}": {"type": "MemoryDataset", "copy_mode": "assign"},
}  # fmt: skip


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


def run(folder: Path, task: AttentionTask, arm: str = "grpo", *, audit: GradientFlowParams = WARM, **algorithm: object) -> None:
    """Beside the committed patterns of an arm the audit's own stand, so that none of them may take the other's datasets."""
    committed = (attention.CONF / "base" / "catalog.yml").read_text()
    for name, value in {"${globals:data}": str(folder), "{task}": "attention", "{folder}": "attention"}.items():
        committed = committed.replace(name, value)
    own = {f"attention.{name}": entry for name, entry in json.loads(json.dumps(OWN).replace("DATA", str(folder))).items()}
    catalog = DataCatalog.from_config(yaml.safe_load(committed) | own)
    values = {
        "attention.task": task, "attention.data": attention.make_data(),
        f"params:attention.{arm}.algorithm": attention.algorithm_params(arm, **algorithm),
        "params:attention.training": attention.training_params(batch_size=4), "params:attention.gradient_flow": audit,
        "params:seed": 0,
    }  # fmt: skip
    for name, value in values.items():
        catalog[name] = MemoryDataset(value, copy_mode="assign")
    parts = Parts.of(values[f"params:attention.{arm}.algorithm"])
    SequentialRunner().run(gradient_flow.create_pipeline("attention", arm, parts=parts), catalog)


def saved(folder: Path) -> pd.DataFrame:
    (figure,), (table,) = folder.rglob("gradient_flow.png"), folder.rglob("gradient_flow.csv")
    assert figure.read_bytes().startswith(b"\x89PNG")
    return pd.read_csv(table)


def test_a_sound_task_passes_with_the_norms_of_a_backward_pass_per_term(tmp_path):
    task = attention.make_task()
    run(tmp_path, task)
    table = saved(tmp_path)
    assert list(table.columns) == ["term", "component", "grad_norm", "expected", "agrees"]
    assert table["agrees"].all()
    assert set(table["term"]) == {*EXPECTED, "reward"}
    assert table.loc[table["term"] == "reward", ["component", "grad_norm"]].values.tolist() == [["class", 0.0], ["heatmap", 0.0]]
    got = table.set_index(["term", "component"])["grad_norm"]
    for term, components in EXPECTED.items():
        assert {name: "gradient" if got[term, name] > 0 else "none" for name in components} == components
    algorithm, training, data = attention.algorithm_params(), attention.training_params(batch_size=4), attention.make_data()
    state = attention.make_state(task, data, algorithm, training)
    batches = [task.make_batch(data, rows_of_step(np.arange(8), step, batch_size=4, seed=0)) for step in range(4)]
    for batch in batches[:3]:
        state, _ = StepRunner(task, algorithm, training)(state, batch)
    experience = attention.gather(algorithm, training, task, state, batches[3])
    losses, _ = mixed_losses(algorithm, training, task, state, experience, 0)
    for term, loss in losses.terms.items():
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward(retain_graph=True)
        for name, group in task.parameter_groups(state.policy).items():
            squares = sum(float(p.grad.double().square().sum()) for p in group if p.grad is not None)
            assert got[term, name] == pytest.approx(losses.weights[term] * squares**0.5, rel=1e-6), (term, name)


def test_a_term_without_a_weight_is_left_out_and_a_start_is_not_taken_for_sound(tmp_path):
    for arm, off, terms in (("supervised", (), []), ("grpo", ("entropy", "value"), ["policy", "kl"])):
        run(tmp_path / arm, attention.make_task(), arm, losses=dict.fromkeys(off))
        table = saved(tmp_path / arm)
        assert list(dict.fromkeys(table["term"])) == ["supervised", *terms, "reward"]
        assert table["agrees"].all()
    message = "policy -> encoder 0 where gradient is expected.*raise gradient_flow.warmup_steps"
    with pytest.raises(GradientFlowError, match=message):  # a policy at its start is not taken for sound
        run(tmp_path / "start", attention.make_task(), audit=WARM.model_copy(update={"warmup_steps": 0}))


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
        run(tmp_path, kind(**vars(attention.make_task())))
    wrong = saved(tmp_path).query("not agrees")
    assert set(zip(wrong["term"], wrong["component"], strict=True)) == set(odd)


def judge(expected):
    columns = ["term", "component", "grad_norm"]
    terms = pd.DataFrame([("policy", "encoder", 2.0), ("policy", "decoder", 0.5), ("value", "encoder", 0.0)], columns=columns)
    rewards = pd.DataFrame([("reward", "f1", 0.0), ("reward", "rouge", math.nan)], columns=columns)
    training = attention.training_params(optimizer={"learning_rates": {"frozen": 0.1}})
    return gradient_flow.judge_flow(GradientFlowParams(warmup_steps=0, expected=expected), training, terms, rewards)


def test_judge_golden():
    table = judge({"policy": {"encoder": "gradient", "decoder": "none", "frozen": "none"}, "kl": {"encoder": "gradient"}})
    assert table["expected"].tolist() == ["gradient", "none", "any", "none", "none"]
    assert table["agrees"].tolist() == [True, False, True, True, False]
    said = "got policy -> decoder 0.5 where none is expected; a graph in reward component rouge; add or remove"
    with pytest.raises(GradientFlowError, match=f"must teach what gradient_flow.expected says, {said}"):
        gradient_flow.require_flow(table, b"")
    assert gradient_flow.require_flow(table[table["agrees"]], b"") is None
    with pytest.raises(ValueError, match=r"gradient_flow.expected.policy must name components of the task, .*got 'decodr'"):
        judge({"policy": {"decodr": "none"}})


def test_the_audit_comes_to_its_end_after_table_and_figure_and_never_updates():
    nodes = {node.name: node for node in gradient_flow.create_pipeline("dialogue", "ppo").nodes}
    assert set(nodes["dialogue.ppo.require_flow"].inputs) == {f"dialogue.ppo.gradient_flow{name}" for name in ("", "_figure")}
    assert not [name for name in nodes if "apply_update" in name]
