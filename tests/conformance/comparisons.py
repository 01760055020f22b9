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


JOINT = partial(ours.policy_loss, algorithm="grpo", reduction="per_sequence", level="joint")
MASKED = ("masked rows", "all masked")
PARTLY_SCORED = ("missing",)
PARTLY_TIED = ("lone sample",)

COMPARISONS: list[Comparison] = [
    *loss_rows("trl", "`GRPOTrainer._compute_loss`"),
    Comparison(
        "joint", "trl", "`policy_loss`, grpo, joint ratio, per_sequence", "`RLOOTrainer._compute_loss`", JOINT, without=MASKED
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
]
