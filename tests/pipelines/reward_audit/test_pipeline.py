"""The audit of a task as a pipeline: what is saved, which rows are scored, and what the document says."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import tiny_attention as attention
import yaml
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from pydantic import ValidationError
from tiny_audit import MODEL, PLAN, STYLE, sound

from grpo_pipeline.pipelines.params import RewardAuditParams
from grpo_pipeline.pipelines.reward_audit import pipeline as reward_audit
from grpo_pipeline.pipelines.reward_audit.document import RewardDocument
from grpo_pipeline.pipelines.reward_audit.samples import read_samples
from grpo_pipeline.pipelines.reward_audit.warnings import policy_table
from grpo_pipeline.tasks.attention.task import AttentionTask

LIMITS = {"trivial_share": 0.0, "tied_groups": 0.5, "constant_groups": 0.95, "explained_share": 0.01, "disagreement": 0.1}
SECTION = {"split": "train", "rows": 6, "n_samples": 3, "warmup_steps": 2, "resamples": 20, "warn": LIMITS}


def params(**changes) -> RewardAuditParams:
    return RewardAuditParams.model_validate(SECTION | changes)


def build(rows=None, *, resamples=200):
    return RewardDocument(read_samples(sound() if rows is None else rows, PLAN), PLAN, resamples=resamples, seed=0).build()


def test_the_pipeline_saves_samples_document_table_and_figure(tmp_path):
    entries = {
        "attention.reward_audit_samples": {"type": "pandas.CSVDataset", "filepath": f"{tmp_path}/samples.csv"},
        "attention.reward_audit": {
            "type": "json.JSONDataset", "filepath": f"{tmp_path}/result.json", "save_args": {"allow_nan": False},
        },
        "attention.reward_audit_table": {"type": "pandas.CSVDataset", "filepath": f"{tmp_path}/table.csv"},
        "attention.reward_audit_figure": {
            "type": "grpo_pipeline.datasets.figure.FigureDataset", "filepath": f"{tmp_path}/figure.png",
        },
    }  # fmt: skip
    catalog = DataCatalog.from_config(yaml.safe_load(yaml.safe_dump(entries)))
    given = {
        "attention.task": attention.make_task(),
        "attention.data": attention.make_data(),
        "params:attention.reward_audit": params(),
        "params:attention.training": attention.training_params(batch_size=4),
        "params:attention.supervised.algorithm": attention.algorithm_params("supervised"),
        "params:seed": 0,
    }
    for name, value in given.items():
        catalog[name] = MemoryDataset(value, copy_mode="assign")
    SequentialRunner().run(reward_audit.create_pipeline("attention"), catalog)
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["task"] == "attention"
    assert (document["split"], document["warmup_steps"], document["n"]["examples"]) == ("train", 2, 6)
    samples = pd.read_csv(tmp_path / "samples.csv")
    of_policy = samples[samples["policy"] == "policy"]
    assert document["policies"]["policy"]["reward"]["value"] == pytest.approx(of_policy["reward"].mean())
    assert pd.read_csv(tmp_path / "table.csv")["policy"].tolist() == list(document["policies"])
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


class Watching(AttentionTask):
    """Remembers what was audited."""

    def audit(self, policy, data, rows, *, seed, n_samples):
        self.__dict__["seen"] = (attention.weights(policy), rows)
        return super().audit(policy, data, rows, seed=seed, n_samples=n_samples)


def watched(**changes):
    task = attention.make_task()
    task = Watching(**{field.name: getattr(task, field.name) for field in dataclasses.fields(task)})
    algorithm, training = attention.algorithm_params("supervised"), attention.training_params(batch_size=4)
    reward_audit.score_policies(params(**changes), algorithm, training, 0, task, attention.make_data())
    return task.__dict__["seen"]


def test_rows_are_drawn_from_the_named_split_and_never_from_test():
    drawn = watched(warmup_steps=0)[1]
    assert len(drawn) == 6
    assert set(drawn) <= set(range(8))
    assert watched(split="val", warmup_steps=0)[1].tolist() == [8, 9]
    with pytest.raises(ValidationError, match="Input should be 'train' or 'val'"):
        params(split="test")


def test_rows_depend_on_the_seed_alone():
    rows = np.arange(50)
    a, b, c = (reward_audit.choose_rows(rows, 10, seed=seed) for seed in (0, 0, 1))
    assert a.tolist() == b.tolist() == sorted(set(a))
    assert a.tolist() != c.tolist()


def test_an_empty_split_is_refused():
    task, data = attention.make_task(), attention.make_data()
    data.examples.table["split"] = data.examples.table["split"].replace({"val": "train"})
    algorithm, training = attention.algorithm_params("supervised"), attention.training_params(batch_size=4)
    with pytest.raises(ValueError, match=r"attention.reward_audit.split must name a split with examples, got 'val'; use train"):
        reward_audit.score_policies(params(split="val", warmup_steps=0), algorithm, training, 0, task, data)


def test_the_start_is_the_control_after_the_warm_up():
    untrained = attention.weights(attention.make_task().build_policy(0))
    assert attention.differing(watched(warmup_steps=0)[0], untrained) == []
    moved = attention.differing(watched(warmup_steps=2)[0], untrained)
    assert any(name.startswith("class_decoder") for name in moved)
    assert not [name for name in moved if name.startswith(("policy.", "texture"))]  # what only the reward teaches


def test_document_golden():
    document = build()
    model, parrot = document["policies"]["model"], document["policies"]["parrot"]
    # mean f1 2.8 / 12, style 0.4 * that, reward f1 + style / 2
    assert model["reward"]["value"] == pytest.approx(0.28)
    assert model["components"]["f1"]["value"] == pytest.approx(2.8 / 12)
    assert model["metrics"]["quality"] == model["components"]["f1"]
    assert parrot["more_than_start"]["value"] == pytest.approx(-0.28)
    # clusters a and b have means 0.3 and 0.26: resamples are aa, ab, ba, bb
    assert parrot["more_than_start"]["ci95"] == pytest.approx([-0.3, -0.26])
    assert (model["more_than_start"], parrot["groups"]) == (None, None)
    rewards = MODEL + 0.5 * STYLE
    assert model["groups"]["std"]["value"] == pytest.approx(rewards.std(axis=1, ddof=1).mean())
    share = {name: component["explained"]["value"] for name, component in model["groups"]["components"].items()}
    centred = rewards - rewards.mean(1, keepdims=True)
    assert share["f1"] == pytest.approx((MODEL * centred).sum() / (centred**2).sum())
    assert sum(share.values()) == pytest.approx(1.0)
    assert document["n"] == {"examples": 4, "clusters": 2, "cluster": "owner"}
    assert document["agreement"].keys() == {"model"}
    assert document["agreement"]["model"]["f1"]["quality"]["within"]["pearson"]["value"] == pytest.approx(1.0)


def test_a_difference_is_taken_over_the_examples_that_both_have():
    rows = sound()
    rows.loc[(rows["policy"] == "parrot") & (rows["name"] == "e0"), "quality"] = np.nan
    gap = build(rows)["policies"]["parrot"]["metrics_more_than_start"]["quality"]
    assert gap["value"] == pytest.approx(-MODEL[1:].mean())
    assert gap["n"] == 3


def test_table_golden():
    table = policy_table(build()).set_index("policy")
    assert table["role"].to_dict() == PLAN.policies
    assert table.loc["parrot", ["reward", "more_than_start_low", "quality", "samples"]].tolist() == pytest.approx([0, -0.3, 0, 1])
    assert table.loc["parrot", "way_to_ceiling"] == pytest.approx(-0.28 / 0.72)
    assert table.loc["model", ["more_than_start", "way_to_ceiling"]].isna().all()
    assert table.loc["answer", ["group_std", "tied_groups"]].isna().all()
    assert table.loc["model", "tied_groups"] == 0


def test_the_audit_reads_what_training_reads():
    pipeline = reward_audit.create_pipeline("dialogue")
    assert pipeline.inputs() == {
        "dialogue.task", "dialogue.data", "params:dialogue.training", "params:dialogue.reward_audit", "params:seed",
        "params:dialogue.supervised.algorithm",
    }  # fmt: skip
