from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from grpo_pipeline.core.params import (
    AdvantageParams,
    AlgorithmParams,
    LoaderParams,
    OptimizerParams,
    PolicyLossParams,
    TrainingParams,
)
from grpo_pipeline.core.policy_gradient.algorithms import LossOptions
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.tasks.attention.params import ModelParams, RewardParams, SupervisedParams


def constant(value: float) -> dict[str, Any]:
    return {"kind": "constant", "start": value}


ADVANTAGE = {"method": "group", "std": "sample"}
POLICY_LOSS = {"clip_low": 0.2, "clip_high": 0.3, "ratio_level": "decision", "reduction": "per_sequence"}
GRPO = {
    "name": "grpo", "supervised_weight": 1.0, "policy_weight": constant(1.0), "kl_weight": 0.1, "value_weight": 0.1,
    "entropy_weight": constant(0.01), "update_epochs": 4, "advantage": ADVANTAGE, "policy_loss": POLICY_LOSS,
}  # fmt: skip
CONTROL = GRPO | {
    "name": "supervised", "policy_weight": constant(0.0), "kl_weight": 0.0, "value_weight": 0.0, "update_epochs": 1,
    "entropy_weight": constant(0.0), "policy_loss": None,
}  # fmt: skip
REINFORCE = GRPO | {"name": "reinforce", "update_epochs": 1}
PPO = GRPO | {"name": "ppo", "advantage": {"method": "batch", "std": "sample", "baseline": "value"}, "value_clip": 0.2}
GSPO = GRPO | {"name": "gspo", "policy_loss": POLICY_LOSS | {"ratio_level": "sequence"}}
CISPO = GRPO | {"name": "cispo", "policy_loss": POLICY_LOSS | {"ratio_cap": 4.0}}
SAPO = GRPO | {"name": "sapo", "policy_loss": POLICY_LOSS | {"tau_positive": 1.0, "tau_negative": 1.1}}
DR_GRPO = GRPO | {"name": "dr_grpo", "policy_loss": POLICY_LOSS | {"reduction": "constant", "max_decisions": 8}}
DAPO = GRPO | {
    "name": "dapo", "policy_loss": POLICY_LOSS | {"reduction": "per_decision"}, "dynamic_sampling": {"max_retries": 2}
}  # fmt: skip
BNPO = GRPO | {"name": "bnpo", "policy_loss": POLICY_LOSS | {"reduction": "per_decision_local"}}
TARGET = {"target": 2.0, "learning_rate": 0.01, "minimum": 0.0, "maximum": 0.1}
REPLAY = {"capacity": 64, "max_age_steps": 10, "share": 0.25, "importance_cap": 2.0}
EVERYTHING = GRPO | {
    "kl_placement": "reward", "kl_estimator": "k3", "rollout_kl_weight": 0.01, "entropy_target": TARGET, "replay": REPLAY,
    "reference": {"update": "ema", "every_steps": 1, "decay": 0.9}, "advantage": ADVANTAGE | {"top_k_ratio": 0.5},
}  # fmt: skip
OPTIMIZER = {
    "learning_rates": {"a": 0.1}, "weight_decay": 0.0, "max_grad_norm": 1.0, "clip": "joint",
    "learning_rate_schedule": constant(1.0),
}  # fmt: skip
TRAINING = {
    "epochs": 2, "batch_size": 4, "group_size": 4, "encoder_refresh": "once", "temperature": constant(1.0),
    "optimizer": OPTIMIZER, "log_every_steps": 1, "device": "auto", "precision": "float32", "float32_products": "default",
    "compile": "none", "memory_format": "contiguous", "activation_checkpointing": "none", "micro_batch_size": None,
    "checkpoint_every_steps": 1, "gradient_report_every_steps": 1, "validate_every_epochs": 1, "validation_samples": 1,
}  # fmt: skip
MODEL = {
    "patch_size": 8, "encoder_width": 16, "encoder_layers": 1, "encoder_heads": 2, "encoder_window": 4, "encoder": "train",
    "feature_channels": 16, "decoder_layers": 1, "decoder_heads": 2, "policy_channels": 8, "texture_channels": 4, "points": 3,
    "class_decoder": "glimpse", "glimpse_size": 16, "glimpse_channels": 4, "glimpse_pool": "mean", "value_pool": "image",
}  # fmt: skip
REWARD = {
    "class_weight": 1.0, "heatmap_weight": 0.0, "diversity_weight": 0.0, "activation_weight": 0.0, "boundary_weight": 0.0,
    "boundary_margin": 0.1, "points_weight": 0.0, "cspca_weight": 1.0, "cspca_min_grade": 3,
}  # fmt: skip
SUPERVISED = {
    "samples": "all", "class_weight": 1.0, "class_form": "cross_entropy", "heatmap_weight": 1.0, "needle_weight": 0.0,
    "needle_form": "cross_entropy", "needle_positive_weight": 1.0, "mil_weight": 0.0, "mil_share": 0.2, "entropy_weight": 0.0,
    "glimpse_weight": 1.0, "glimpse_bag_cells": 4, "symmetric": {"alpha": 1.0, "beta": 1.0, "log_zero": -4.0},
    "involvement_clamp": 0.02, "prob_clamp": 1e-4,
}  # fmt: skip
VALID: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (AlgorithmParams, GRPO), (AlgorithmParams, CONTROL), (AlgorithmParams, REINFORCE), (AdvantageParams, ADVANTAGE),
    (PolicyLossParams, POLICY_LOSS), (OptimizerParams, OPTIMIZER), (TrainingParams, TRAINING), (ModelParams, MODEL),
    (RewardParams, REWARD), (SupervisedParams, SUPERVISED),
]  # fmt: skip

CONTROL_RULE = (
    r"policy_weight, kl_weight, rollout_kl_weight, value_weight and entropy_weight must be 0 and update_epochs 1 for "
    r"name = supervised; use name = grpo or reinforce to train the policy"
)
REFUSED: list[tuple[type[BaseModel], dict[str, Any], dict[str, Any], str]] = [
    (AlgorithmParams, CONTROL, {"policy_weight": constant(1.0)}, CONTROL_RULE),
    (AlgorithmParams, CONTROL, {"policy_weight": {"kind": "linear", "start": 0.0, "end": 1.0}}, CONTROL_RULE),
    *[(AlgorithmParams, CONTROL, change, CONTROL_RULE) for change in (
        {"value_weight": 0.1}, {"update_epochs": 2}, {"kl_weight": 0.1}, {"rollout_kl_weight": 0.1},
        {"entropy_weight": constant(0.1)})],
    (AlgorithmParams, GRPO, {"policy_weight": constant(0.0)},
     r"policy_weight must be positive for name = grpo, got start = 0.0; use warmup_steps"),
    (AlgorithmParams, GRPO, {"policy_weight": {"kind": "linear", "start": 0.0, "end": 1.0}}, "policy_weight must be positive"),
    (AlgorithmParams, CONTROL, {"supervised_weight": 0.0}, "supervised_weight must be positive for name = supervised, got 0"),
    (AlgorithmParams, CONTROL, {"policy_loss": POLICY_LOSS, "replay": REPLAY},
     "policy_loss and replay must be null for name = supervised, got a value; the control has no policy"),
    (AlgorithmParams, GRPO, {"policy_loss": None}, "policy_loss must be given for name = grpo, got null"),
    (AlgorithmParams, GRPO, {"proposal": "uniform"},
     "proposal must be policy for name = grpo, got uniform; a policy learns from its own samples: use name = supervised"),
    (AlgorithmParams, REINFORCE, {"proposal": "oracle"}, "proposal must be policy for name = reinforce, got oracle"),
    (AlgorithmParams, REINFORCE, {"update_epochs": 4},
     r"update_epochs must be 1 for algorithm reinforce, got 4; it has no ratio to correct for a policy that has moved: use grpo"),
    (AlgorithmParams, REINFORCE, {"replay": REPLAY}, "replay must be null for name = reinforce, got a value; it has no ratio"),
    (AlgorithmParams, REINFORCE, {"kl_estimator": "ratio_k3"}, "kl_estimator must not be ratio_k3 for name = reinforce"),
    *[
        (AlgorithmParams, GRPO, {"advantage": ADVANTAGE | given | {"credit": "marginal"}} | beside, f"must be set with {said}")
        for given, beside, said in (
            ({"baseline": "value"}, {}, "baseline = value and method = group, got marginal"),
            ({"method": "per_reward"}, {}, "baseline = group and method = per_reward, got marginal"),
            ({}, {"policy_loss": POLICY_LOSS | {"ratio_level": "joint"}}, "policy_loss.ratio_level = joint, got marginal"),
            ({}, {"kl_placement": "reward", "kl_estimator": "k1"}, "kl_placement = reward, got marginal"),
        )
    ],
    (AlgorithmParams, GRPO, {"name": "ppo"}, "advantage.baseline must be value for name = ppo, got group"),
    (AlgorithmParams, PPO, {"value_weight": 0.0}, "value_weight must be positive with a value baseline, got 0 for name = ppo"),
    (AlgorithmParams, GRPO, {"value_weight": 0.0, "value_clip": 0.2}, "value_clip must be null without value_weight, got 0.2"),
    (AlgorithmParams, GRPO, {"name": "gspo"}, "ratio_level must be sequence for algorithm gspo, got decision"),
    (AlgorithmParams, CISPO, {"name": "grpo"}, "policy_loss.ratio_cap must be absent for name = grpo, got 4.0; only cispo reads"),
    (AlgorithmParams, SAPO, {"name": "cispo"}, "policy_loss.tau_positive must be absent for name = cispo, got 1.0; only sapo"),
    (AlgorithmParams, GRPO, {"policy_loss": POLICY_LOSS | {"delta": 1.1}}, r"delta must be finite and above 1 \+ clip_high"),
    (AlgorithmParams, GRPO, {"kl_estimator": "k1"},
     "kl_estimator must be one of exact, k2, k3, ratio_k3 with kl_placement = loss, got k1; its gradient has mean 0"),
    (AlgorithmParams, GRPO, {"kl_placement": "reward"},
     "kl_estimator must be one of k1, k2, k3 with kl_placement = reward, got exact; a reward needs a number per sample"),
    (AlgorithmParams, GRPO, {"entropy_target": TARGET | {"minimum": 0.2}}, "minimum must be below maximum, got 0.2 and 0.1"),
    (AlgorithmParams, GRPO, {"replay": REPLAY | {"share": 1.0}}, "replay.share\n.*less than 1"),
    (AlgorithmParams, GRPO, {"dynamic_sampling": {"max_retries": 0}}, "max_retries\n.*greater than or equal to 1"),
    (AlgorithmParams, GRPO, {"reference": {"update": "ema", "decay": 1.0}}, "reference.decay\n.*less than 1"),
    (AlgorithmParams, GRPO, {"supervised_weight": -1.0}, "supervised_weight must be greater than or equal to 0, got -1"),
    (AlgorithmParams, GRPO, {"value_weight": {"kind": "linear", "start": 0.1, "end": -0.1}},
     "value_weight must be greater than or equal to 0, got -0.1"),
    (AlgorithmParams, GRPO, {"update_epochs": 0}, "update_epochs\n.*greater than or equal to 1"),
    (AdvantageParams, ADVANTAGE, {"top_k_ratio": 0.0}, "top_k_ratio\n.*greater than 0"),
    (AdvantageParams, ADVANTAGE, {"eps": -1e-9}, "eps\n.*greater than or equal to 0"),
    (AdvantageParams, ADVANTAGE, {"tie_tolerance": float("inf")}, "tie_tolerance\n.*finite"),
    (AdvantageParams, ADVANTAGE, {"method": "leave_one_out", "baseline": "value"},
     "method must be group, mean_only or batch with baseline = value, got leave_one_out"),
    (PolicyLossParams, POLICY_LOSS, {"clip_low": 0.0}, "clip_low\n.*greater than 0"),
    (PolicyLossParams, POLICY_LOSS, {"clip_low": 1.0}, "clip_low\n.*less than 1"),
    (PolicyLossParams, POLICY_LOSS, {"clip_high": 0.0}, "clip_high\n.*greater than 0"),
    (PolicyLossParams, POLICY_LOSS, {"dual_clip": 1.0}, "dual_clip must be finite and above 1, got 1.0"),
    (PolicyLossParams, POLICY_LOSS, {"max_decisions": 8}, "max_decisions must be absent with reduction = per_sequence, got 8"),
    (OptimizerParams, OPTIMIZER, {"weight_decay": -0.1}, "weight_decay\n.*greater than or equal to 0"),
    (OptimizerParams, OPTIMIZER, {"max_grad_norm": 0.0}, "max_grad_norm\n.*greater than 0"),
    (TrainingParams, TRAINING, {"group_size": 1},
     r"group_size must be at least 2, got 1; the advantage of a sample is measured against the other samples of its group"),
    *[(TrainingParams, TRAINING, {name: 0}, f"{name}\n.*greater than or equal to 1") for name in (
        "epochs", "batch_size", "group_size", "log_every_steps", "checkpoint_every_steps", "gradient_report_every_steps",
        "validate_every_epochs", "validation_samples")],
    (ModelParams, MODEL, {"encoder_heads": 3},
     r"encoder_width must be a multiple of encoder_heads, got 16 and 3; change one of them"),
    (ModelParams, MODEL, {"feature_channels": 12},
     r"feature_channels must be a multiple of 8 and its half a multiple of decoder_heads, got 12 and 2"),
    (ModelParams, MODEL, {"policy_channels": 12}, "policy_channels\n.*multiple of 8"),
    (ModelParams, MODEL, {"stop": {"min_points": 3}},
     "stop.min_points must be below points = 3, got 3; raise points, or set stop to null"),
    (ModelParams, MODEL, {"stop": {"min_points": 0}}, "min_points\n.*greater than or equal to 1"),
    (ModelParams, MODEL, {"stop": {"min_points": 1}, "likelihood": "independent"},
     "likelihood must be plackett_luce with a stop decision, got independent"),
    (RewardParams, REWARD, {"points_weight": -0.1}, "points_weight\n.*greater than or equal to 0"),
    (ModelParams, MODEL, {"patch_size": 1}, "patch_size\n.*greater than or equal to 2"),
    (ModelParams, MODEL, {"encoder_window": -1}, "encoder_window\n.*greater than or equal to 0"),
    (ModelParams, MODEL, {"glimpse_size": 3}, "glimpse_size\n.*greater than or equal to 4"),
    (RewardParams, REWARD, {"class_weight": 0.0},
     r"class_weight, heatmap_weight or dice_weight must be positive, got 0 for all; give one"),
    (RewardParams, REWARD, {"heatmap_weight": -1.0}, "heatmap_weight\n.*greater than or equal to 0"),
    (SupervisedParams, SUPERVISED, {"involvement_clamp": 0.5}, "involvement_clamp\n.*less than 0.5"),
    (SupervisedParams, SUPERVISED, {"glimpse_bag_cells": 0}, "glimpse_bag_cells\n.*greater than or equal to 1"),
    (SupervisedParams, SUPERVISED, {"class_weight": -1.0}, "class_weight\n.*greater than or equal to 0"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "values", "change", "message"), REFUSED)
def test_is_refused(model: type[BaseModel], values: dict[str, Any], change: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        model.model_validate(values | change)


@pytest.mark.parametrize(("model", "values"), VALID)
def test_is_accepted_frozen_and_complete(model: type[BaseModel], values: dict[str, Any]):
    params = model.model_validate(values)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(params, next(iter(values)), None)
    with pytest.raises(ValidationError, match=r"mistyped\n.*Extra inputs are not permitted"):
        model.model_validate(values | {"mistyped": 1})
    for name in values:  # values live in YAML: nothing has a default
        with pytest.raises(ValidationError, match=rf"{name}\n.*Field required"):
            model.model_validate({key: value for key, value in values.items() if key != name})


@pytest.mark.parametrize("values", [PPO, GSPO, CISPO, SAPO, DR_GRPO, DAPO, BNPO, EVERYTHING, CONTROL | {"proposal": "oracle"}])
def test_a_combination_that_works_is_accepted(values: dict[str, Any]):
    params = AlgorithmParams.model_validate(values)
    assert AlgorithmParams.model_validate(params.model_dump(mode="json")) == params


def test_a_number_is_a_constant_schedule_and_options_that_are_not_given_keep_their_defaults():
    params = AlgorithmParams.model_validate(CISPO | {"kl_weight": 0.3})
    assert [value_at(params.kl_weight, step, 10) for step in (0, 5, 9)] == [0.3, 0.3, 0.3]
    assert params.policy_loss is not None
    assert params.policy_loss.options == LossOptions(clip_low=0.2, clip_high=0.3, ratio_cap=4.0)


def test_the_control_draws_uniformly():
    proposals = [AlgorithmParams.model_validate(values).proposal for values in (CONTROL, REINFORCE, GRPO)]
    assert proposals == ["uniform", "policy", "policy"]
    assert AlgorithmParams.model_validate(GRPO | {"proposal": None}).proposal == "policy"


@pytest.mark.parametrize(("prefetch", "workers", "is_refused"), [(0, 1, False), (0, 2, True), (2, 2, False), (2, 3, True)])
def test_no_more_threads_than_batches_ahead_are_asked_for(prefetch: int, workers: int, is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(ValidationError, match="workers"):
            LoaderParams(prefetch=prefetch, workers=workers)
    else:
        assert LoaderParams(prefetch=prefetch, workers=workers).workers == workers


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("clip_low", 0.11), ("clip_high", 0.12), ("delta", 1.5), ("dual_clip", 2.5), ("ratio_cap", 4.0), ("tau_positive", 0.7),
        ("tau_negative", 0.9), ("max_decisions", 9),
    ],
)  # fmt: skip
def test_each_option_of_a_loss_arrives_at_it(option: str, value: float) -> None:
    given = POLICY_LOSS | {"clip_low": 0.2, "clip_high": 0.3, "reduction": "constant"} | {option: value}
    options = PolicyLossParams.model_validate(given).options
    assert options == replace(LossOptions(clip_low=0.2, clip_high=0.3), **{option: value})
