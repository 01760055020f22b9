import math
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError
from tiny import merge

from grpo_pipeline.core.objective.advantages.baselines import Group, LeaveOneOut, MeanOnly, ReinforcePlusPlus
from grpo_pipeline.core.objective.advantages.optimal_baseline import Opo
from grpo_pipeline.core.objective.advantages.pass_at_k import PassAtK
from grpo_pipeline.core.objective.advantages.per_reward import PerReward
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.objective.dynamic_sampling import DynamicSamplingParams
from grpo_pipeline.core.objective.entropy import EntropyBonus, EntropyTarget
from grpo_pipeline.core.objective.kl import KlLoss
from grpo_pipeline.core.objective.kl_in_reward import KlInReward
from grpo_pipeline.core.objective.part import Part
from grpo_pipeline.core.objective.replay import ReplayParams
from grpo_pipeline.core.objective.supervised import SupervisedLoss
from grpo_pipeline.core.objective.surrogates.cispo import Cispo
from grpo_pipeline.core.objective.surrogates.clipped import DrGrpo, Grpo
from grpo_pipeline.core.objective.surrogates.reinforce import Reinforce
from grpo_pipeline.core.objective.surrogates.sapo import Sapo
from grpo_pipeline.core.objective.value import ValueLoss
from grpo_pipeline.core.params import OptimizerParams, TrainingParams
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.migrate_objectives import REWARD as REWARD_FIELDS
from grpo_pipeline.tasks.attention.migrate_objectives import SUPERVISED_LOSS as LOSS_FIELDS
from grpo_pipeline.tasks.attention.model.class_decoder.params import GlimpseParams
from grpo_pipeline.tasks.attention.model.encoder.params import NewEncoder
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.model.policy_params import PolicyParams
from grpo_pipeline.tasks.attention.rewards.params import Priority, RewardParams


def constant(value: float) -> dict[str, Any]:
    return {"kind": "constant", "start": value}


ADVANTAGE = {"method": "group", "std": "sample"}
PASS_AT_K = {"method": "pass_at_k", "k": 2}
DEVIATION = (("std", "sample"), ("eps", 0.1))
NO_CLIP = {"clip_low": None, "clip_high": None}
POLICY = {
    "kind": "grpo", "weight": constant(1.0), "clip_low": 0.2, "clip_high": 0.3, "ratio_level": "decision",
    "reduction": "per_sequence",
}  # fmt: skip
OTHERS = ("kl", "value", "entropy")
GRPO = {
    "losses": {
        "supervised": {"weight": 1.0}, "policy": POLICY, "kl": {"weight": 0.1}, "value": {"weight": 0.1},
        "entropy": {"weight": constant(0.01)},
    },
    "update_epochs": 4, "advantage": ADVANTAGE,
}  # fmt: skip


def grpo(policy: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return GRPO with another policy loss, and with further changes."""
    return merge(merge(GRPO, {"losses": {"policy": policy or {}}}), changes)


def losses(**changes: Any) -> dict[str, Any]:
    return {"losses": changes}


ONCE = {name: value for name, value in GRPO.items() if name != "update_epochs"}
CONTROL = {"losses": {"supervised": {"weight": 1.0}}, "advantage": ADVANTAGE}
REINFORCE = merge(ONCE, losses(policy={"kind": "reinforce", **NO_CLIP}))
PPO = grpo({"kind": "ppo"}, losses={"value": {"clip": 0.2}}, advantage={"method": "batch", "baseline": "value"})
GSPO = grpo({"kind": "gspo", "ratio_level": "sequence"})
CISPO = grpo({"kind": "cispo", **NO_CLIP, "ratio_cap": 4.0})
SAPO = grpo({"kind": "sapo", **NO_CLIP})
DR_GRPO = grpo({"kind": "dr_grpo", "reduction": "constant", "max_decisions": 8})
DAPO = grpo({"kind": "dapo", "reduction": "per_decision"}, dynamic_sampling={"max_retries": 2})
LUSPO = grpo({"kind": "luspo", "ratio_level": "sequence", "reduction": "per_sequence_sum"})
GMPO = grpo({"kind": "gmpo", "ratio_level": "sequence", "clip_low": 1.2})
VESPO = grpo({"kind": "vespo", "ratio_level": "joint", **NO_CLIP})
CLIP_COV = grpo({"kind": "clip_cov", "cov_share": 0.01})
KL_COV = grpo({"kind": "kl_cov", **NO_CLIP, "kl_weight": 0.5})
BNPO = grpo({"kind": "bnpo", "reduction": "per_decision_local"})
TARGET = {"nats": 2.0, "learning_rate": 0.01, "minimum": 0.0, "maximum": 0.1}
REPLAY = {"capacity": 64, "max_age_steps": 10, "share": 0.25, "importance_cap": 2.0}
PAID = {"weight": 0.1, "estimator": "k3"}
EVERYTHING = grpo(
    losses={"kl": None, "entropy": {"target": TARGET}}, replay=REPLAY,
    kl_in_reward=PAID, advantage={"top_k_ratio": 0.5},
)  # fmt: skip
OPTIMIZER = {
    "learning_rates": {"a": 0.1}, "weight_decay": 0.0, "max_grad_norm": 1.0, "clip": "joint",
    "learning_rate_schedule": constant(1.0),
}  # fmt: skip
TRAINING = {
    "epochs": 2, "batch_size": 4, "group_size": 4, "encoder_refresh": "once", "temperature": constant(1.0),
    "optimizer": OPTIMIZER, "log_every_steps": 1, "device": "auto", "precision": "float32", "float32_products": "default",
    "memory_format": "contiguous", "activation_checkpointing": "none", "micro_batch_size": None,
    "checkpoint_every_steps": 1, "gradient_report_every_steps": 1, "validate_every_epochs": 1, "validation_samples": 1,
}  # fmt: skip
MODEL = {
    "patch_size": 8, "points": 3, "encoder": {"kind": "new", "width": 16, "layers": 1, "heads": 2, "window": 4},
    "mask_decoder": {"channels": 16, "layers": 1, "heads": 2},
    "policy": {"reads": {"kind": "image"}, "channels": 8, "filters": 4},
    "class_decoder": {"kind": "glimpse", "size": 16, "channels": 4},
}  # fmt: skip
REWARD = {
    "class": {"weight": 1.0}, "heatmap": {"weight": 0.5}, "diversity": {"weight": 0.1}, "activation": {"weight": 0.1},
    "boundary": {"weight": 0.1, "margin": 0.1}, "points": {"weight": 0.1}, "dice": {"weight": 0.1},
    "priority": {"weight": 2.0, "min_grade": 3},
}  # fmt: skip
SUPERVISED = {
    "samples": "all", "mask_share": 0.5, "class": {"weight": 1.0, "form": "cross_entropy"}, "heatmap": {"weight": 1.0},
    "needle": {"weight": 0.1, "form": "symmetric", "positive_weight": 2.0},
    "mil": {"weight": 0.1, "share": 0.2, "instances": "cells"},
    "entropy": {"weight": 0.1}, "outline": {"weight": 0.1}, "heatmap_outline": {"weight": 0.1}, "glimpse": {"weight": 1.0},
    "ridge": {"weight": 0.1}, "location": {"weight": 0.1},
}  # fmt: skip
UNBOUNDED = {name: value for name, value in POLICY.items() if name not in NO_CLIP}
BOUNDS = (*NO_CLIP, "delta", "dual_clip")
# Names of options and switches that parts have taken the place of.
FORMER = (
    "name", "supervised_weight", "policy_weight", "kl_weight", "rollout_kl_weight", "value_weight", "entropy_weight",
    "policy_loss", "kl_placement", "kl_estimator", "reference", "value_clip", "entropy_target",
)  # fmt: skip


def members_of(section: type[BaseModel]) -> list[type[Part]]:
    """Return the models of a section's parts."""
    hints = [get_args(field.annotation) for field in section.model_fields.values()]
    return [hint[0] for hint in hints if isinstance(hint[0], type) and issubclass(hint[0], Part)]


VALID: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (AlgorithmParams, ONCE), (AlgorithmParams, CONTROL), (AlgorithmParams, REINFORCE),
    (SupervisedLoss, {"weight": 1.0}), (KlLoss, {"weight": 0.1}), (KlInReward, PAID),
    (ValueLoss, {"weight": 0.1}), (EntropyBonus, {"weight": 0.1}), (EntropyTarget, TARGET),
    (DynamicSamplingParams, {"max_retries": 2}), (ReplayParams, REPLAY), (OptimizerParams, OPTIMIZER), (TrainingParams, TRAINING),
    (ModelParams, MODEL), (Priority, {"weight": 2.0}),
    *[(part, {"weight": 0.5}) for part in (*members_of(RewardParams), *members_of(SupervisedParams)) if part is not Priority],
]  # fmt: skip

EXTRA = "Extra inputs are not permitted"
ZERO = "weight must be positive, got 0; write null for the whole part"
NO_TAG = r"losses\.policy\n.*Unable to extract tag using discriminator 'kind'"
REFUSED: list[tuple[type[BaseModel], dict[str, Any], dict[str, Any], str]] = [
    (AlgorithmParams, CONTROL, losses(policy={"weight": constant(1.0)}), NO_TAG),
    (AlgorithmParams, CONTROL, losses(policy={"weight": {"kind": "linear", "start": 0.0, "end": 1.0}}), NO_TAG),
    *[(AlgorithmParams, CONTROL, losses(**{name: {"weight": 0.1}}),
       f"losses.{name} must be null without losses.policy, got a value; the control trains no policy") for name in OTHERS],
    (AlgorithmParams, GRPO, losses(policy=None),
     "losses.kl and losses.value and losses.entropy must be null without losses.policy, got a value; the control"),
    (AlgorithmParams, CONTROL, {"update_epochs": 2}, "update_epochs must be 1 without losses.policy, got 2"),
    (AlgorithmParams, GRPO, losses(policy={"weight": constant(0.0)}),
     r"losses\.policy\.grpo\.weight\n.*weight must be positive at some step, got 0; write null for the whole part"),
    (AlgorithmParams, GRPO, losses(policy={"weight": {"kind": "linear", "start": 0.0, "end": 1.0}}),
     r"weight must be positive at its start, got 0.0; use warmup_steps"),
    *[(AlgorithmParams, GRPO, losses(**{name: {"weight": 0.0}}),
       rf"losses\.{name}\.weight\n.*weight must be positive at some step, got 0; write null for the whole part")
      for name in ("supervised", "kl", "value", "entropy")],
    (AlgorithmParams, grpo(losses={"kl": None}), {"kl_in_reward": PAID | {"weight": 0.0}},
     r"kl_in_reward\.weight\n.*weight must be positive at some step, got 0"),
    (AlgorithmParams, CONTROL, losses(supervised={"weight": 0.0}), "weight must be positive at some step, got 0"),
    (AlgorithmParams, CONTROL, losses(supervised=None),
     "losses must hold supervised or policy, got neither; nothing would be learned"),
    (AlgorithmParams, CONTROL, {"kl_in_reward": PAID, "dynamic_sampling": {"max_retries": 1}, "replay": REPLAY},
     "kl_in_reward and dynamic_sampling and replay must be null without losses.policy, got a value; the control trains no"),
    (AlgorithmParams, GRPO, losses(policy={"kind": None}), "Input tag 'None' found using 'kind' does not match"),
    (AlgorithmParams, GRPO, losses(policy={"kind": "supervised"}), "Input tag 'supervised' found using 'kind' does not match"),
    (AlgorithmParams, GRPO, {"proposal": "uniform"},
     "proposal must be policy with losses.policy, got uniform; a policy learns from its own samples: leave losses.policy out"),
    (AlgorithmParams, REINFORCE, {"proposal": "oracle"}, "proposal must be policy with losses.policy, got oracle"),
    (AlgorithmParams, REINFORCE, {"update_epochs": 4},
     r"update_epochs must be 1 with losses.policy.kind = reinforce, got 4; it has no ratio to correct"),
    (AlgorithmParams, REINFORCE, {"replay": REPLAY},
     "replay must be null with losses.policy.kind = reinforce, got a value; it has no ratio"),
    (AlgorithmParams, REINFORCE, losses(kl={"estimator": "ratio_k3"}),
     "losses.kl.estimator must not be ratio_k3 with losses.policy.kind = reinforce"),
    *[
        (AlgorithmParams, GRPO, merge({"advantage": given | {"credit": "marginal"}}, beside), said)
        for given, beside, said in (
            ({"baseline": "value"}, {}, "credit must be set with baseline = value, got marginal"),
            ({"method": "per_reward"}, {}, "credit\n.*Input should be 'set'"),
            ({}, losses(policy={"ratio_level": "joint"}), "must be set with losses.policy.ratio_level = joint, got marginal"),
            ({}, {"losses": {"kl": None}, "kl_in_reward": {"weight": 0.1, "estimator": "k1"}}, "with kl_in_reward, got marginal"),
        )
    ],
    (AlgorithmParams, GRPO, losses(policy={"kind": "ppo"}),
     "advantage.baseline must be value with losses.policy.kind = ppo, got group"),
    *[(AlgorithmParams, values, losses(value=None),
       "losses.value must be given with advantage.baseline = value, got null; an untrained value is noise")
      for values in (PPO, grpo(advantage={"baseline": "value"}))],
    (AlgorithmParams, GRPO, losses(value={"weight": None, "clip": 0.2}), r"losses\.value\.weight\n.*Field required"),
    (AlgorithmParams, GRPO, losses(value={"weight": 0.0, "clip": 0.2}), "weight must be positive at some step, got 0"),
    (AlgorithmParams, ONCE, losses(value={"clip": 0.2}), "losses.value.clip must be null with update_epochs = 1, got 0.2"),
    *[(AlgorithmParams, GRPO, losses(policy={"kind": kind, **change}), rf"policy\.{kind}\.{name}\n.*Input should be '{only}'")
      for kind, name, only, change in (
          ("luspo", "ratio_level", "sequence", {"reduction": "per_sequence_sum"}),
          ("luspo", "reduction", "per_sequence_sum", {"ratio_level": "sequence"}), ("gmpo", "ratio_level", "sequence", {}),
          ("vespo", "ratio_level", "joint", NO_CLIP), ("clip_cov", "ratio_level", "decision", {"ratio_level": "joint"}),
          ("kl_cov", "ratio_level", "decision", NO_CLIP | {"ratio_level": "joint"}))],
    (AlgorithmParams, merge(ONCE, losses(policy={"kind": "kl_cov", **NO_CLIP})), {},
     "update_epochs must be above 1 with losses.policy.kind = kl_cov, got 1; its penalty is 0 before the policy has moved"),
    (AlgorithmParams, GRPO, losses(policy={"kind": "clip_cov", "cov_low": 5.0}), "cov_low must be below cov_high, got 5.0 and 5"),
    (AlgorithmParams, GRPO, losses(policy={"kind": "gmpo", "ratio_level": "sequence"}) | {"advantage": {"credit": "marginal"}},
     "advantage.credit must be set with losses.policy.ratio_level = sequence"),
    (AlgorithmParams, GRPO, losses(policy={"kind": "gspo"}), r"losses\.policy\.gspo\.ratio_level\n.*Input should be 'sequence'"),
    *[(AlgorithmParams, values, losses(policy={"ratio_level": "sequence"}), r"ratio_level\n.*'decision' or 'joint'")
      for values in (REINFORCE, GRPO, PPO, CISPO, SAPO, DR_GRPO, DAPO, BNPO)],
    *[(AlgorithmParams, values, losses(policy={"reduction": "per_sequence", "max_decisions": None}),
       rf"policy\.{kind}\.reduction\n.*Input should be '{reduction}'")
      for kind, values, reduction in (
          ("dr_grpo", DR_GRPO, "constant"), ("dapo", DAPO, "per_decision"), ("bnpo", BNPO, "per_decision_local"))],
    (AlgorithmParams, GRPO, losses(policy={"delta": 2.0, "dual_clip": 3.0}), "at most one of delta and dual_clip"),
    (AlgorithmParams, GRPO, losses(policy={"kind": "ppo2"}), r"losses\.policy\n.*'ppo2' found using 'kind' does not match"),
    (AlgorithmParams, CISPO, losses(policy={"kind": "grpo", "clip_low": 0.2, "clip_high": 0.3}),
     rf"losses\.policy\.grpo\.ratio_cap\n.*{EXTRA}"),
    (AlgorithmParams, SAPO, losses(policy={"tau_positive": 1.0}), rf"losses\.policy\.sapo\.tau_positive\n.*{EXTRA}"),
    *[(AlgorithmParams, values, losses(policy={option: 1.4}), rf"losses\.policy\.{kind}\.{option}\n.*{EXTRA}")
      for kind, values, unread in (
          ("reinforce", REINFORCE, (*BOUNDS, "ratio_cap")), ("cispo", CISPO, BOUNDS),
          ("sapo", SAPO, (*BOUNDS, "ratio_cap")), ("grpo", GRPO, ("ratio_cap",)))
      for option in unread],
    (AlgorithmParams, GRPO, losses(policy={"delta": 1.1}), r"delta must be above 1 \+ clip_high = 1.3, got 1.1"),
    (AlgorithmParams, GRPO, losses(kl={"estimator": "k1"}),
     r"losses\.kl\.estimator\n.*Input should be 'exact', 'k2', 'k3' or 'ratio_k3'"),
    (AlgorithmParams, EVERYTHING, {"kl_in_reward": {"reference": {"update": "ema"}}}, rf"kl_in_reward\.reference\n.*{EXTRA}"),
    (AlgorithmParams, grpo(losses={"kl": None}), {"kl_in_reward": {"weight": 0.1}}, r"kl_in_reward\.estimator\n.*Field required"),
    *[(AlgorithmParams, grpo(losses={"kl": None}), {"kl_in_reward": {"weight": 0.1, "estimator": estimator}},
       r"kl_in_reward\.estimator\n.*Input should be 'k1', 'k2' or 'k3'") for estimator in ("exact", "ratio_k3")],
    (AlgorithmParams, GRPO, {"kl_in_reward": PAID},
     "one of losses.kl and kl_in_reward must be null, got both; a KL is paid once, to one reference: keep one"),
    (AlgorithmParams, GRPO, losses(entropy={"target": TARGET | {"minimum": 0.2}}),
     "minimum must be below maximum, got 0.2 and 0.1"),
    (AlgorithmParams, GRPO, losses(entropy={"weight": None, "target": TARGET}), r"losses\.entropy\.weight\n.*Field required"),
    (AlgorithmParams, GRPO, {"replay": REPLAY | {"share": 1.0}}, "replay.share\n.*less than 1"),
    (AlgorithmParams, GRPO, {"dynamic_sampling": {"max_retries": 0}}, "max_retries\n.*greater than or equal to 1"),
    (AlgorithmParams, GRPO, losses(kl={"reference": {"update": "ema", "decay": 1.0}}),
     r"losses\.kl\.reference\.ema\.decay\n.*less than 1"),
    (AlgorithmParams, GRPO, losses(kl={"reference": {"update": "ema", "decay": 1.0}}), r"decay\n.*less than 1"),
    *[(AlgorithmParams, GRPO, losses(kl={"reference": {"update": update, unread: 2}}),
       rf"reference\.{update}\.{unread}\n.*{EXTRA}")
      for update, unread in (("frozen", "every_steps"), ("frozen", "decay"), ("copy", "decay"))],
    (AlgorithmParams, GRPO, losses(kl={"reference": {"every_steps": 2}}), rf"reference\.frozen\.every_steps\n.*{EXTRA}"),
    (AlgorithmParams, GRPO, losses(supervised={"weight": -1.0}), "weight must be greater than or equal to 0, got -1"),
    (AlgorithmParams, GRPO, losses(value={"weight": {"kind": "linear", "start": 0.1, "end": -0.1}}),
     r"losses\.value\.weight\n.*weight must be greater than or equal to 0, got -0.1"),
    (AlgorithmParams, EVERYTHING, {"kl_in_reward": {"weight": -0.1}}, "weight must be greater than or equal to 0, got -0.1"),
    (AlgorithmParams, GRPO, {"target_kl": 0.0}, "target_kl\n.*greater than 0"),
    (AlgorithmParams, ONCE, {"target_kl": 0.1}, "target_kl must be null with update_epochs = 1, got 0.1"),
    (AlgorithmParams, CONTROL, {"target_kl": 0.1}, "target_kl must be null with update_epochs = 1, got 0.1"),
    (AlgorithmParams, GRPO, {"update_epochs": 0}, "update_epochs\n.*greater than or equal to 1"),
    *[(AlgorithmParams, values, {name: 1.0}, rf"{name}\n.*{EXTRA}") for values in (GRPO, CONTROL) for name in FORMER],
    *[(AlgorithmParams, GRPO, losses(**{name: {"weight": 1.0}}), rf"losses\.{name}\n.*{EXTRA}")
      for name in ("rollout_kl", "policy_loss", "kl_in_reward")],
    (Group, ADVANTAGE, {"top_k_ratio": 0.0}, "top_k_ratio\n.*greater than 0"),
    (Group, ADVANTAGE, {"eps": -1e-9}, "eps\n.*greater than or equal to 0"),
    (Group, ADVANTAGE, {"clip": 0.0}, "clip\n.*greater than 0"),
    (Group, ADVANTAGE, {"k": 2}, rf"k\n.*{EXTRA}"),
    (MeanOnly, {}, {"credit": "marginal", "baseline": "value"}, "credit must be set with baseline = value, got marginal"),
    *[(kind, {}, {name: value}, rf"{name}\n.*{EXTRA}") for kind in (MeanOnly, LeaveOneOut, Opo) for name, value in DEVIATION],
    *[(kind, {}, {"baseline": "value"}, "baseline\n.*Input should be 'group'")
      for kind in (LeaveOneOut, ReinforcePlusPlus, PerReward, Opo)],
    *[(kind, {}, {"credit": "marginal"}, "credit\n.*Input should be 'set'") for kind in (PerReward, Opo)],
    (PassAtK, {}, {}, "k\n.*Field required"),
    (PassAtK, {}, {"k": 1}, "k\n.*greater than or equal to 2"),
    (Grpo, POLICY, {"clip_low": 0.0}, "clip_low\n.*greater than 0"),
    (Grpo, POLICY, {"clip_low": 1.1}, "clip_low\n.*less than or equal to 1"),
    (Grpo, POLICY, {"clip_high": 0.0}, "clip_high\n.*greater than 0"),
    (Grpo, POLICY, {"dual_clip": 1.0}, "dual_clip\n.*greater than 1"),
    (Grpo, POLICY, {"top_entropy": 0.0}, "top_entropy\n.*greater than 0"),
    (Grpo, POLICY, {"top_entropy": 1.0}, "top_entropy\n.*less than 1"),
    (Grpo, POLICY, {"top_entropy": 0.2, "ratio_level": "joint"}, "top_entropy must be null with ratio_level = joint, got 0.2"),
    (AlgorithmParams, GSPO, losses(policy={"top_entropy": 0.2}), "top_entropy must be null with ratio_level = sequence, got 0.2"),
    (Grpo, POLICY, {"max_decisions": 8}, "max_decisions must be absent with reduction = per_sequence, got 8"),
    *[(model, UNBOUNDED | {"kind": kind}, {"max_decisions": 8, "reduction": "constant", "ratio_level": "joint"},
       "max_decisions must be absent with ratio_level = joint, got 8")
      for model, kind in ((Reinforce, "reinforce"), (Cispo, "cispo"), (Sapo, "sapo"))],
    (Cispo, UNBOUNDED | {"kind": "cispo"}, {"ratio_cap": 0.5}, "ratio_cap\n.*greater than or equal to 1"),
    (OptimizerParams, OPTIMIZER, {"weight_decay": -0.1}, "weight_decay\n.*greater than or equal to 0"),
    (OptimizerParams, OPTIMIZER, {"max_grad_norm": 0.0}, "max_grad_norm\n.*greater than 0"),
    (TrainingParams, TRAINING, {"group_size": 1}, "group_size\n.*greater than or equal to 2"),
    *[(TrainingParams, TRAINING, {name: 0}, f"{name}\n.*greater than or equal to 1") for name in (
        "epochs", "batch_size", "log_every_steps", "checkpoint_every_steps", "gradient_report_every_steps",
        "validate_every_epochs", "validation_samples")],
    (ModelParams, MODEL, {"encoder": MODEL["encoder"] | {"heads": 3}},
     r"encoder.width must be a multiple of encoder.heads, got 16 and 3; change one of them"),
    (ModelParams, MODEL, {"mask_decoder": MODEL["mask_decoder"] | {"channels": 12}},
     r"mask_decoder.channels must be a multiple of 8 and its half a multiple of mask_decoder.heads, got 12 and 2"),
    (PolicyParams, MODEL["policy"], {"channels": 12}, "channels\n.*multiple of 8"),
    (ModelParams, MODEL, {"policy": MODEL["policy"] | {"stop": {"min_points": 3}}},
     "policy.stop.min_points must be below attention.model.points = 3, got 3; raise points, or set stop to null"),
    (PolicyParams, MODEL["policy"], {"stop": {"min_points": 0}}, "min_points\n.*greater than or equal to 1"),
    (PolicyParams, MODEL["policy"], {"stop": {"min_points": 1}, "likelihood": "independent"},
     "likelihood must be plackett_luce with a stop decision, got independent"),
    (PolicyParams, MODEL["policy"], {"prior": {"kind": "dark_blobs", "strength": 0.0}}, "strength\n.*greater than 0"),
    (ModelParams, MODEL, {"detail": {"channels": 0}}, "detail.channels\n.*greater than or equal to 8"),
    *[(RewardParams, REWARD, {name: {"weight": weight}}, rf"{name}\.weight\n.*{message}")
      for name in REWARD if name != "priority"
      for weight, message in ((-0.1, "greater than 0"), (0.0, ZERO), (math.inf, "finite number"))],
    (ModelParams, MODEL, {"patch_size": 1}, "patch_size\n.*greater than or equal to 2"),
    (NewEncoder, MODEL["encoder"], {"window": -1}, "window\n.*greater than or equal to 0"),
    (GlimpseParams, MODEL["class_decoder"], {"size": 3}, "size\n.*greater than or equal to 4"),
    (RewardParams, REWARD, dict.fromkeys(("class", "heatmap", "dice")), "class, heatmap or dice must be given, got none of them"),
    (RewardParams, REWARD, {"boundary": {"weight": None}}, r"boundary\.weight\n.*Field required"),
    (RewardParams, REWARD, {"boundary": {"margin": 0.5}}, r"boundary\.margin\n.*less than 0.5"),
    (RewardParams, REWARD, {"class_": {"weight": 1.0}}, rf"class_\n.*{EXTRA}"),
    *[(SupervisedParams, SUPERVISED, {name: {"weight": weight}}, rf"{name}\.weight\n.*{message}")
      for name in SUPERVISED if name not in ("samples", "mask_share")
      for weight, message in ((-1.0, "greater than 0"), (0.0, ZERO), (math.nan, "finite number"))],
    *[(model, values, {name: 1.0}, rf"{name}\n.*{EXTRA}")
      for model, values, former in ((RewardParams, REWARD, REWARD_FIELDS), (SupervisedParams, SUPERVISED, LOSS_FIELDS))
      for name in (*former, "mistyped")],
    (SupervisedParams, {"samples": "all", "mask_share": 0.5}, {}, "supervised_loss must hold a term, got none; nothing would be"),
    (SupervisedParams, SUPERVISED, {"mil": {"weight": None}}, r"mil\.weight\n.*Field required"),
    (SupervisedParams, SUPERVISED, {"class": {"penalty": 0.1}}, rf"class\.penalty\n.*{EXTRA}"),
    *[(SupervisedParams, SUPERVISED, {"mask_share": share}, f"mask_share must be above 0 with outline, got {share}; say whose")
      for share in (None, 0.0)],
]  # fmt: skip


@pytest.mark.parametrize(("model", "values", "change", "message"), REFUSED)
def test_is_refused(model: type[BaseModel], values: dict[str, Any], change: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        model.model_validate(merge(values, change))


@pytest.mark.parametrize(("model", "values"), VALID)
def test_is_accepted_frozen_and_complete(model: type[BaseModel], values: dict[str, Any]):
    params = model.model_validate(values)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(params, next(iter(values)), None)
    with pytest.raises(ValidationError, match=r"mistyped\n.*Extra inputs are not permitted"):
        model.model_validate(values | {"mistyped": 1})
    for name in values:  # values live in YAML: nothing but a surrogate and an advantage has a default
        with pytest.raises(ValidationError, match=rf"{name}\n.*Field required"):
            model.model_validate({key: value for key, value in values.items() if key != name})
        if issubclass(model, Part):  # null takes away what a base has
            with pytest.raises(ValidationError, match=rf"{name}\n.*Field required"):
                model.model_validate(values | {name: None})


@pytest.mark.parametrize("values", [
    PPO, GSPO, CISPO, SAPO, DR_GRPO, DAPO, BNPO, LUSPO, GMPO, VESPO, CLIP_COV, KL_COV, EVERYTHING,
    CONTROL | {"proposal": "oracle"},
])  # fmt: skip
def test_a_combination_that_works_is_accepted(values: dict[str, Any]):
    params = AlgorithmParams.model_validate(values)
    assert AlgorithmParams.model_validate(params.model_dump(mode="json")) == params


def test_parts_that_are_off_are_left_out_of_dumps_so_that_digests_of_older_runs_stay():
    assert {"credit", "k", "clip"}.isdisjoint(Group.model_validate(ADVANTAGE).model_dump())
    given = PASS_AT_K | {"clip": 3.0}
    assert PassAtK.model_validate(given).model_dump().items() >= given.items()


def test_a_number_is_a_constant_schedule_and_absent_options_keep_their_defaults():
    params = AlgorithmParams.model_validate(merge(CISPO, losses(kl={"weight": 0.3})))
    assert params.losses.kl is not None
    assert [value_at(params.losses.kl.weight, step, 10) for step in (0, 5, 9)] == [0.3, 0.3, 0.3]
    assert params.losses.policy is not None
    assert params.losses.policy == Cispo(ratio_cap=4.0)
    clipped = AlgorithmParams.model_validate(GRPO).losses.policy
    assert clipped is not None
    assert clipped == Grpo(clip_low=0.2, clip_high=0.3)
    assert AlgorithmParams.model_validate(ONCE).update_epochs == 1


@pytest.mark.parametrize("values", [GRPO, PPO, EVERYTHING])
def test_null_takes_away_the_whole_part(values: dict[str, Any]):
    names = ("kl", "entropy", "supervised")
    without = AlgorithmParams.model_validate(merge(values, losses(**dict.fromkeys(names)) | {"kl_in_reward": None}))
    assert [getattr(without.losses, name) for name in names] == [None] * 3
    assert without.paid_kl is None
    rest = {name: part for name, part in values["losses"].items() if name not in names}
    named = {name: value for name, value in values.items() if name not in ("losses", "kl_in_reward")}
    assert without == AlgorithmParams.model_validate(named | {"losses": rest})
    assert set(without.losses.weights) == {"policy", "value"}


@pytest.mark.parametrize("kind", [Reinforce, Grpo, DrGrpo, Cispo, Sapo])
def test_a_surrogate_is_frozen_and_refuses_what_it_does_not_read(kind: type[BaseModel]):
    with pytest.raises(ValidationError, match="frozen"):
        kind().weight = 2.0
    with pytest.raises(ValidationError, match=rf"mistyped\n.*{EXTRA}"):
        kind(mistyped=1)


@pytest.mark.parametrize(("values", "kind"), [(CONTROL, "supervised"), (REINFORCE, "reinforce"), (GSPO, "gspo"), (SAPO, "sapo")])
def test_the_name_of_an_arm_is_the_kind_of_its_policy_loss(values: dict[str, Any], kind: str):
    assert AlgorithmParams.model_validate(values).name == kind


def test_the_control_draws_uniformly():
    proposals = [AlgorithmParams.model_validate(values).proposal for values in (CONTROL, REINFORCE, GRPO)]
    assert proposals == ["uniform", "policy", "policy"]
    assert AlgorithmParams.model_validate(GRPO | {"proposal": None}).proposal == "policy"
