"""Which of our functions is compared with which oracle, on which cases, and how close they must be.

The oracles' modules import their libraries, so that they are named here and imported by ``generate.py`` alone; everyone else
reads what it has frozen in ``fixtures``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import constants
import ours
from cases import GAE_KINDS, LOSS_KINDS, REWARD_KINDS
from outcomes import Outcome
from rows import Comparison

LOSSES: dict[str, tuple[str, str, Callable[[Any], Outcome]]] = {
    key: (f"`policy_loss`, {label}", oracle, partial(ours.policy_loss, **options))
    for key, label, oracle, options in [
        ("grpo", "grpo, per_sequence", "`grpo`", {"algorithm": "grpo", "reduction": "per_sequence"}),
        ("bnpo", "bnpo, per_decision_local", "`bnpo`", {"algorithm": "bnpo", "reduction": "per_decision_local"}),
        ("dr_grpo", "dr_grpo, constant, L_max", "`dr_grpo`", {"algorithm": "dr_grpo", "reduction": "constant"}),
        ("dapo", "dapo, per_decision", "`dapo`", {"algorithm": "dapo", "reduction": "per_decision"}),
        (
            "dapo, part of a step",
            "dapo, per_decision, the step's denominator",
            "`dapo`, `num_items_in_batch`",
            {"algorithm": "dapo", "reduction": "per_decision", "denominator": constants.STEP_DENOMINATOR},
        ),
        (
            "grpo, delta",
            "grpo, per_sequence, delta",
            "`grpo`, `delta`",
            {"algorithm": "grpo", "reduction": "per_sequence", "delta": constants.DELTA},
        ),
        ("cispo", "cispo, per_decision", "`cispo`", {"algorithm": "cispo", "reduction": "per_decision"}),
        ("sapo", "sapo, per_sequence", "`sapo`", {"algorithm": "sapo", "reduction": "per_sequence"}),
        (
            "gspo",
            "gspo, sequence ratio, per_sequence",
            "`grpo`, sequence level",
            {"algorithm": "gspo", "reduction": "per_sequence", "level": "sequence"},
        ),
        (
            "gspo, per decision",
            "gspo, sequence ratio, per_decision",
            "`dapo`, sequence level",
            {"algorithm": "gspo", "reduction": "per_decision", "level": "sequence"},
        ),
        (
            "luspo, sequence level",
            "luspo, sequence ratio, per_sequence_sum",
            "`luspo`, sequence level",
            {"algorithm": "luspo", "reduction": "per_sequence_sum", "level": "sequence"},
        ),
        (
            "grpo + k3",
            "grpo + `kl_loss` k3",
            "`grpo`, `beta`, no bias correction",
            {"algorithm": "grpo", "reduction": "per_sequence", "estimator": "k3"},
        ),
        (
            "grpo + ratio_k3",
            "grpo + `kl_loss` ratio_k3",
            "`grpo`, `beta`, bias correction",
            {"algorithm": "grpo", "reduction": "per_sequence", "estimator": "ratio_k3"},
        ),
        (
            "dapo + ratio_k3",
            "dapo + `kl_loss` ratio_k3",
            "`dapo`, `beta`, bias correction",
            {"algorithm": "dapo", "reduction": "per_decision", "estimator": "ratio_k3"},
        ),
        (
            "gspo + ratio_k3",
            "gspo + `kl_loss` ratio_k3",
            "`grpo`, sequence level, `beta`, bias correction",
            {"algorithm": "gspo", "reduction": "per_sequence", "level": "sequence", "estimator": "ratio_k3"},
        ),
    ]
}


def loss_rows(library: str, name: str) -> list[Comparison]:
    """Return the rows of a library that has all of the losses."""
    return [Comparison(key, library, mine, f"{name}, {theirs}", compute) for key, (mine, theirs, compute) in LOSSES.items()]


# The oracle knows no reward that is missing.
ALL_SCORED = ("missing", "lone sample", "unscored group")
JOINT = partial(ours.policy_loss, algorithm="grpo", reduction="per_sequence", level="joint")
MASKED = ("masked rows", "all masked")
PARTLY_SCORED = ("missing",)
PARTLY_TIED = ("lone sample",)

COMPARISONS: list[Comparison] = [
    *loss_rows("trl", "`GRPOTrainer._compute_loss`"),
    Comparison(
        "joint",
        "trl",
        "`policy_loss`, grpo, joint ratio, per_sequence",
        "`RLOOTrainer._compute_loss`",
        JOINT,
        without=(*MASKED, "far ratios"),
        remark="joint ratios above exp(20), which ours does not pass, are among the far ones",
    ),
    Comparison(
        "joint",
        "trl",
        "`policy_loss`, grpo, joint ratio, per_sequence",
        "`RLOOTrainer._compute_loss`",
        JOINT,
        wanted=None,
        without=tuple(kind for kind in LOSS_KINDS if kind not in MASKED),
        remark="rows without any valid decision: the oracle adds -A to the loss, without a gradient; ours leaves them out",
    ),
    Comparison(
        "vespo",
        "trl",
        "`policy_loss`, vespo, joint ratio, over the decisions",
        "`GRPOTrainer._compute_loss`, `vespo`",
        partial(ours.policy_loss, algorithm="vespo", reduction="per_decision", level="joint"),
        remark="divided by the decisions of the step as the oracle does; by default ours divides by samples",
    ),
    Comparison(
        "top entropy",
        "trl",
        "`keep_uncertain` + `policy_loss`, grpo, per_sequence",
        "`GRPOTrainer._compute_loss`, `grpo`, `top_entropy_quantile`",
        ours.uncertain_loss,
        remark="half of the decisions",
    ),
    Comparison(
        "group", "trl", "`compute_advantages`, group", '`GRPOTrainer`, `scale_rewards="group"`', ours.advantages, cases="rewards"
    ),
    Comparison(
        "group",
        "trl",
        "`compute_advantages`, group",
        '`GRPOTrainer`, `scale_rewards="group"`',
        ours.advantages,
        cases="tied rewards",
        wanted=1e-11,
        remark="one group ties: the oracle divides its round-off by eps; ours is exactly 0",
    ),
    Comparison(
        "group in float32",
        "trl",
        "`compute_advantages`, group",
        '`GRPOTrainer`, `scale_rewards="group"`, rewards in float32 as in training',
        ours.advantages,
        cases="tied rewards",
        wanted=None,
        remark="one group ties: the oracle divides its round-off by eps and pulls on samples that are all alike; "
        "ours is exactly 0",
    ),
    Comparison(
        "mean only",
        "trl",
        "`compute_advantages`, mean_only",
        '`GRPOTrainer`, `scale_rewards="none"`',
        partial(ours.advantages, method="mean_only"),
        cases="rewards",
    ),
    Comparison(
        "batch",
        "trl",
        "`compute_advantages`, batch",
        '`GRPOTrainer`, `scale_rewards="batch"`',
        partial(ours.advantages, method="batch"),
        cases="rewards",
    ),
    Comparison(
        "leave one out",
        "trl",
        "`compute_advantages`, leave_one_out",
        "`RLOOTrainer`",
        partial(ours.advantages, method="leave_one_out"),
        cases="rewards",
    ),
    Comparison(
        "weighted sum",
        "trl",
        "`compute_advantages`, group, of `combine_rewards`",
        '`GRPOTrainer`, `"sum_then_normalize"`',
        ours.summed_advantages,
        cases="rewards",
        without=PARTLY_SCORED,
        remark="two parts with weights",
    ),
    Comparison(
        "weighted sum",
        "trl",
        "`compute_advantages`, group, of `combine_rewards`",
        '`GRPOTrainer`, `"sum_then_normalize"`',
        ours.summed_advantages,
        cases="rewards",
        wanted=None,
        without=tuple(kind for kind in REWARD_KINDS if kind not in PARTLY_SCORED),
        remark="some parts missing: the oracle takes such a part for 0; ours takes the sample for not scored",
    ),
    Comparison(
        "per reward",
        "trl",
        "`per_reward_advantages`",
        '`GRPOTrainer`, `"normalize_then_sum"`',
        ours.gdpo_advantages,
        cases="rewards",
        without=PARTLY_TIED,
        remark="GDPO",
    ),
    Comparison(
        "per reward",
        "trl",
        "`per_reward_advantages`",
        '`GRPOTrainer`, `"normalize_then_sum"`',
        ours.gdpo_advantages,
        cases="tied rewards",
        wanted=None,
        remark="GDPO, one group ties: the oracle counts its samples as zeros, so that the size of all other advantages "
        "depends on how many groups tie; ours whitens over the samples that teach something",
    ),
    Comparison(
        "per reward",
        "trl",
        "`per_reward_advantages`",
        '`GRPOTrainer`, `"normalize_then_sum"`',
        ours.gdpo_advantages,
        cases="rewards",
        wanted=None,
        without=tuple(kind for kind in REWARD_KINDS if kind not in PARTLY_TIED),
        remark="GDPO, one group with a single scored sample: as above",
    ),
    Comparison(
        "action log-probs",
        "trl",
        "`chunked_logprobs`, log-probabilities",
        "`selective_log_softmax`",
        partial(ours.chunked, part=0),
        cases="logits",
        remark="gradient: hidden states and weights",
    ),
    Comparison(
        "entropy",
        "trl",
        "`chunked_logprobs`, entropies",
        "`entropy_from_logits`",
        partial(ours.chunked, part=1),
        cases="logits",
        remark="gradient: hidden states and weights",
    ),
    Comparison("action log-probs", "trl", "`log_policy`", "`selective_log_softmax`", partial(ours.full, part=0), cases="logits"),
    Comparison("entropy", "trl", "`entropy_of`", "`entropy_from_logits`", partial(ours.full, part=1), cases="logits"),
    Comparison(
        "truncated",
        "transformers",
        "`truncated_log_probs`, temperature, top-k, top-p",
        "`LogitsProcessorList` of the three processors",
        ours.truncated,
        cases="logits",
        remark="squared probabilities; gradient: hidden states and weights",
    ),
    *loss_rows("liger_kernel", "`ppo_loss_fn`"),
    Comparison(
        "fused head",
        "liger_kernel",
        "`chunked_logprobs` + `policy_loss`, dapo",
        "`LigerFusedLinearGRPOLoss`",
        ours.fused_head,
        cases="logits",
        wanted=1e-4,
        remark="the oracle computes in float32",
    ),
    Comparison("gae", "torchrl", "`generalized_advantages`", "`generalized_advantage_estimate`", ours.gae, cases="trajectories"),
    Comparison(
        "gae, vectorised",
        "torchrl",
        "`generalized_advantages`",
        "`vec_generalized_advantage_estimate`",
        ours.gae,
        cases="trajectories",
        wanted=None,
        remark="the oracle drops weights (gamma * lambda)^n below 1e-7; its own loop keeps them",
    ),
    Comparison(
        "returns", "torchrl", "`discounted_returns`", "`reward2go`", ours.returns, cases="trajectories", without=("short memory",)
    ),
    Comparison(
        "returns",
        "torchrl",
        "`discounted_returns`",
        "`reward2go`",
        ours.returns,
        cases="trajectories",
        wanted=None,
        without=tuple(kind for kind in GAE_KINDS if kind != "short memory"),
        remark="gamma at most 0.5: the oracle drops weights gamma^n below 1e-7",
    ),
    Comparison("ppo", "torchrl", "`policy_loss`, ppo, per_decision", "`ClipPPOLoss`", ours.head_ppo, cases="logits"),
    Comparison("gae", "stable_baselines3", "`generalized_advantages`", "`RolloutBuffer`", ours.gae, cases="trajectories"),
    Comparison(
        "explained variance",
        "stable_baselines3",
        "`explained_variance`",
        "`explained_variance`",
        ours.explained_variance,
        cases="trajectories",
        without=("one step",),
    ),
    Comparison(
        "geo mean",
        "verl",
        "`policy_loss`, gmpo, per_sequence",
        "`compute_policy_loss_geo_mean`",
        partial(ours.policy_loss, algorithm="gmpo", reduction="per_sequence", level="sequence"),
        wanted=1e-6,
        remark="the oracle adds 1e-8 to each length",
    ),
    Comparison(
        "clip cov",
        "verl",
        "`policy_loss`, clip_cov, per_decision",
        "`compute_policy_loss_clip_cov`",
        partial(ours.policy_loss, algorithm="clip_cov", reduction="per_decision"),
        cases="on-policy losses",
        remark="all decisions between the bounds: the oracle draws among them where there are more",
    ),
    Comparison(
        "kl cov",
        "verl",
        "`policy_loss`, kl_cov, per_decision",
        "`compute_policy_loss_kl_cov`",
        partial(ours.policy_loss, algorithm="kl_cov", reduction="per_decision"),
        # All covariances of some of these cases tie, and the oracle takes any of them.
        without=("masked rows", "zero advantages"),
        remark="selected by the present policy as the oracle does; training selects by that of the rollout",
    ),
    Comparison(
        "opo",
        "verl",
        "`optimal_baseline_advantages`",
        "`compute_opo_outcome_advantage`",
        ours.optimal_baseline,
        cases="rewards",
        without=ALL_SCORED,
    ),
    Comparison(
        "pass at k",
        "verl",
        "`pass_at_k_advantages`, k = G, divided by k",
        "`compute_grpo_passk_outcome_advantage`",
        ours.best_of_all,
        cases="rewards",
        without=ALL_SCORED,
        remark="without its deviation; the oracle has no other k",
    ),
    Comparison(
        "reinforce plus plus",
        "verl",
        "`compute_advantages`, reinforce_plus_plus",
        "`compute_reinforce_plus_plus_baseline_outcome_advantage`",
        ours.whitened,
        cases="rewards",
        wanted=1e-8,
        without=ALL_SCORED,
        remark="samples of one length; the oracle adds 1e-8 to their number (and to the variance, of rewards times 2^20 here)",
    ),
]
