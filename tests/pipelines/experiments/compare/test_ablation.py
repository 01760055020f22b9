"""Every arm of conf/ablation can be trained, not only described: one step-sized trial of each on the tiny task."""

import pytest
import yaml
from tiny_attention import CONF, make_clinical_examples, merge
from tiny_folds import EVALUATION
from tiny_grid import SHORT, Memory, tiny_parameters

from grpo_pipeline.pipelines.experiments.compare.nodes import arrange_trials, train_trial
from grpo_pipeline.pipelines.experiments.trials.arms import CompareParams

ARMS = yaml.safe_load((CONF / "ablation/parameters/attention_compare.yml").read_text())["attention"]["compare"]["arms"]
LIMITS = {
    "recomputation": "every_epoch",
    "value baseline": "ppo",
    "sampling": "likelihood_independent",
    "reward scales": "per_reward",
    "exploration": "constant_exploration",
    "supervised loss": "supervised_last_sample",
    "replay": "replay",
    "number of points": "stop_decision",
}


def test_each_of_the_eight_limits_has_an_arm():
    assert sorted(set(LIMITS.values()) - ARMS.keys()) == []


@pytest.mark.slow
def test_every_arm_of_the_ablation_can_be_trained():
    arms = {name: arm | {"set": merge({"training": SHORT["training"]}, arm["set"])} for name, arm in ARMS.items()}
    params = CompareParams(
        seeds=(0,), control="supervised", arms={"supervised": {"base": "supervised"}} | arms,
        primary_metrics=("auroc", "reward_class"), baseline_rules=(), keep="predictions",
    )  # fmt: skip
    plan, store = arrange_trials(params, EVALUATION, {"attention": tiny_parameters()}), Memory()
    for record in train_trial(params, EVALUATION, plan, make_clinical_examples(), store):
        if record is not False:
            store.keep(record)
    assert len(store.headers) > len(ARMS)
    assert {header.reason for header in store.headers.values()} == {None}
    assert all("auroc" in header.metrics for header in store.headers.values())
