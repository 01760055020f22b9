"""The audit of a task as a pipeline: what is saved, which rows are scored, and what the document says."""

import json

import numpy as np
import pandas as pd
import pytest
import tiny_attention as attention
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from pydantic import ValidationError
from tiny_audit import audit_document, with_model

from grpo_pipeline.pipelines.of_task import task_pipelines
from grpo_pipeline.pipelines.params import RewardAuditParams
from grpo_pipeline.pipelines.reward_audit import pipeline as reward_audit
from grpo_pipeline.tasks import TASKS, find_task
from grpo_pipeline.tasks.attention.task import AttentionTask

SECTION = {"split": "train", "rows": 6, "n_samples": 3, "warmup_steps": 2, "resamples": 20}


def params(**changes) -> RewardAuditParams:
    return RewardAuditParams.model_validate(SECTION | changes)


def test_the_pipeline_saves_samples_document_table_and_figure(tmp_path):
    saved = {
        "": ("json.JSONDataset", "result.json"), "_samples": ("pandas.CSVDataset", "samples.csv"),
        "_table": ("pandas.CSVDataset", "table.csv"), "_figure": ("grpo_pipeline.datasets.figure.FigureDataset", "figure.png"),
    }  # fmt: skip
    files = {name: {"type": kind, "filepath": f"{tmp_path}/{file}"} for name, (kind, file) in saved.items()}
    files[""]["save_args"] = {"allow_nan": False}
    catalog = DataCatalog.from_config({f"attention.reward_audit{name}": entry for name, entry in files.items()})
    given = {
        "attention.task": attention.make_task(), "attention.data": attention.make_data(),
        "params:attention.reward_audit": params(), "params:attention.training": attention.training_params(batch_size=4),
        "params:attention.supervised.algorithm": attention.algorithm_params("supervised"), "params:seed": 0,
    }  # fmt: skip
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


def watched(data=None, **changes):
    task = Watching(**vars(attention.make_task()))
    algorithm, training = attention.algorithm_params("supervised"), attention.training_params(batch_size=4)
    reward_audit.score_policies(params(**changes), algorithm, training, 0, task, data or attention.make_data())
    return task.__dict__["seen"]


def test_rows_are_drawn_by_the_seed_from_the_named_split_and_never_from_test():
    drawn = watched(warmup_steps=0)[1]
    assert len(drawn) == 6
    assert set(drawn) <= set(range(8))
    assert watched(split="val", warmup_steps=0)[1].tolist() == [8, 9]
    with pytest.raises(ValidationError, match="Input should be 'train' or 'val'"):
        params(split="test")
    data = attention.make_data()
    data.examples.table["split"] = data.examples.table["split"].replace({"val": "train"})
    with pytest.raises(ValueError, match=r"attention.reward_audit.split must name a split with examples, got 'val'; use train"):
        watched(data, split="val", warmup_steps=0)
    a, b, c = (reward_audit.choose_rows(np.arange(50), 10, seed=seed) for seed in (0, 0, 1))
    assert a.tolist() == b.tolist() == sorted(set(a))
    assert a.tolist() != c.tolist()


def test_the_start_is_the_control_after_the_warm_up():
    untrained = attention.weights(attention.make_task().build_policy(0))
    assert attention.differing(watched(warmup_steps=0)[0], untrained) == []
    moved = attention.differing(watched(warmup_steps=2)[0], untrained)
    assert any(name.startswith("class_decoder") for name in moved)
    assert not [name for name in moved if name.startswith(("policy.", "texture"))]  # what only the reward teaches


def test_training_stops_where_the_answer_is_not_paid_more_unless_it_may_go_on():
    paid, unpaid = audit_document(), audit_document(with_model(np.ones((4, 3))))
    for stop in ("stop", "warn"):
        reward_audit.admit_training(params(no_ceiling=stop), paid)
    reward_audit.admit_training(params(no_ceiling="warn"), unpaid)
    sentence = (
        r"the reward of talk must pay a policy that knows the answer .* got: the ceiling \(answer\) is paid 1.000, not shown to "
        r"be more than the start \(model\) 1.000 .*set talk.reward_audit.no_ceiling: warn to train all the same"
    )
    with pytest.raises(ValueError, match=sentence):
        reward_audit.admit_training(params(), unpaid)


@pytest.mark.parametrize("task", TASKS)
def test_every_arm_is_trained_after_the_audit_has_admitted_it(task):
    made = task_pipelines(find_task(task))
    names = [node.name for node in made[task].nodes]
    trained = [names.index(f"{task}-train_{arm}.train") for arm in find_task(task).arms]
    assert names.index(f"{task}-audit.admit_training") < min(trained)
    assert f"{task}-audit.admit_training" not in {node.name for node in made[f"{task}_reward_audit"].nodes}
