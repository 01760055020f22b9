"""Every arm of conf/ablation can be trained, not only described: one step-sized trial of each on the tiny task."""

import pytest
import yaml
from tiny_attention import CONF, make_clinical_examples, merge
from tiny_grid import SHORT, Memory, tiny_parameters

from grpo_pipeline.pipelines.experiments.compare.nodes import arrange_trials, train_trial
from grpo_pipeline.pipelines.experiments.trials.arms import CompareParams
from grpo_pipeline.pipelines.params import EvaluationParams

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
EVALUATION = EvaluationParams(
    task="attention", split="test", control="supervised", baseline_arm="grpo", headline_rule="policy", chance_rule="uniform",
    cluster="patient_id", seed=0, resamples=50, max_undefined=0.1, metric_options={},
)  # fmt: skip


def test_each_of_the_eight_limits_has_an_arm():
    assert sorted(set(LIMITS.values()) - ARMS.keys()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ARMS))
def test_an_arm_of_the_ablation_can_be_trained(name):
    arm = ARMS[name] | {"set": merge({"training": SHORT["training"]}, ARMS[name]["set"])}
    params = CompareParams(
        seeds=(0,), control="supervised", arms={"supervised": {"base": "supervised"}, name: arm},
        primary_metrics=("auroc", "reward_class"), baseline_rules=(), keep="predictions",
    )  # fmt: skip
    plan = arrange_trials(params, EVALUATION, {"attention": tiny_parameters()})
    wanted, store = tuple(trial for trial in plan.trials if trial.arm == name), Memory()
    for record in train_trial(params, EVALUATION, type(plan)(plan.task, plan.arms, wanted), make_clinical_examples(), store):
        if record is not False:
            store.keep(record)
    [header] = store.headers.values()
    assert (header.status, header.reason) == ("finished", None)
    assert "auroc" in header.metrics
