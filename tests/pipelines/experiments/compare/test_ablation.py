"""Every arm of conf/ablation can be trained, not only described: one step-sized trial of each on the tiny task."""

import pytest
import yaml
from tiny import SERIAL
from tiny_attention import CONF, make_clinical_examples, merge
from tiny_folds import EVALUATION
from tiny_grid import SHORT, Memory, tiny_parameters

from grpo_pipeline.pipelines.experiments.compare.nodes import arrange_trials, train_trial
from grpo_pipeline.pipelines.experiments.trials.trial_params import CompareParams

ARMS = yaml.safe_load((CONF / "ablation/attention/parameters_compare.yml").read_text())["attention"]["compare"]["arms"]
# Recomputation, value baseline, sampling, reward scales, exploration, supervised loss, replay, number of points.
LIMITS = {"every_epoch", "ppo", "likelihood_independent", "per_reward", "constant_exploration", "supervised_last_sample",
          "replay", "stop_decision"}  # fmt: skip


@pytest.mark.slow
def test_every_arm_of_the_ablation_can_be_trained_and_each_limit_has_one():
    assert LIMITS - ARMS.keys() == set()
    arms = {name: arm | {"set": merge({"training": SHORT["training"]}, arm["set"])} for name, arm in ARMS.items()}
    params = CompareParams(
        seeds=(0,), control="supervised", arms={"supervised": {"base": "supervised"}} | arms,
        primary_metrics=("auroc", "reward_class"), baseline_rules=(), keep="predictions", split="test",
    )  # fmt: skip
    plan, store = arrange_trials(params, EVALUATION, {"attention": tiny_parameters()}), Memory()
    for record in train_trial(params, EVALUATION, SERIAL, plan, make_clinical_examples(), store):
        if record is not False:
            store.keep(record)
    assert len(store.headers) > len(ARMS)
    assert {header.reason for header in store.headers.values()} == {None}
    assert all("auroc" in header.metrics for header in store.headers.values())
