"""The step of an arm, from a batch to the next state: the loop, the first step and the graph are all made of these tables.

P prompts, G samples of each, L decisions of a sample. Parts act at four places: after the sampling, after the reward, as terms
of the loss, after the update. A part that the arm does not have is no row.
"""

from kedro.pipeline import Pipeline

from grpo_pipeline.pipelines.step import (
    advantages,
    experience,
    mixing,
    reward,
    sampling,
    scoring,
    update,
)
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.step.parts import (
    correction,
    credit,
    dynamic_sampling,
    entropy,
    kl,
    kl_in_reward,
    policy,
    reference,
    replay,
    supervised,
    target_kl,
    top_entropy,
    value,
)
from grpo_pipeline.pipelines.step.wire import when, wire


# fmt: off
def collect(arm: Parts) -> Pipeline:
    """Wire task, state and batch -> experience: once per batch."""
    own = {"resampling": arm.resamples, "importance": arm.replays, "mismatch": arm.corrects, "reference": arm.reads_reference,
           "values": arm.reads_values, "selected": arm.selects}
    held = ["batch replicated context rollouts temperature outcomes rewards advantages", *(k for k, v in own.items() if v)]
    weighed = ["algorithm task replicated rewards", *(name for name in ("values", "importance") if own[name]),
               *(["rollouts"] if arm.reads_lengths else [])]
    return wire(
        # what is known of each prompt [P, ...], given to each of its samples [P, G, ...]
        ("", "replicated", sampling.replicate_batch, "training task batch"),
        # each prompt once, with the graph of the encoder
        ("sample", "context", sampling.encode_batch, "task state batch"),
        # actions and their log-probabilities [P, G, L]
        ("sample", "rollouts temperature", sampling.sample_rollouts, "algorithm training task state context"),
        *when(arm.resamples, ("sample", "rollouts resampling", dynamic_sampling.dynamic_sampling,
                              "algorithm training task state context replicated rollouts temperature")),
        # how likely the policy is to draw a stored sample, beside how likely it was: [P, G]
        *when(arm.replays, ("sample", "rollouts importance", replay.replay_groups,
                            "algorithm task state context rollouts replayed temperature")),
        # the same log-probabilities under the policy, and how far it is above the engine that drew: [P, G, L]
        *when(arm.corrects, ("sample", "rollouts mismatch", correction.score_again, "task state context rollouts temperature")),
        # what the samples lead to, with the graph of the decoders
        ("sample", "outcomes", sampling.decode_rollouts, "task state context rollouts replicated"),
        # named parts and their weighted total, each [P, G]; NaN where a sample was not scored
        ("reward", "rewards", reward.compute_rewards, "task replicated rollouts outcomes"),
        # what each decision has contributed: [P, G, L]
        *when(arm.credits, ("reward", "rewards", credit.credit_decisions,
                            "algorithm task state context rollouts replicated rewards")),
        # log-probabilities of the same actions [P, G, L]
        *when(arm.reads_reference, ("reward", "reference", reference.score_reference,
                                    "algorithm task state batch rollouts temperature")),
        *when(arm.pays_kl, ("reward", "rewards", kl_in_reward.penalise_kl, "algorithm state rewards rollouts reference")),
        # the reward that is expected of each prompt: [P]
        *when(arm.reads_values, ("advantage", "values", value.predict_values, "task state context rollouts temperature")),
        # [P, G], or [P, G, L] of decisions
        ("advantage", "advantages", advantages.compute_advantages, " ".join(weighed)),
        *when(arm.keeps_uncertain, ("advantage", "advantages", top_entropy.silence_sure_decisions,
                                    "algorithm task state context rollouts temperature advantages")),
        *when(arm.corrects, ("advantage", "advantages", correction.weigh_advantages, "algorithm advantages mismatch")),
        # decisions that the surrogate treats otherwise: bool [P, G, L]
        *when(arm.selects, ("advantage", "selected", policy.select_decisions, "algorithm rollouts advantages")),
        ("advantage", "experience", experience.collect_experience, " ".join(held)),
    )


def learn(arm: Parts) -> Pipeline:
    """Wire an experience, or a piece of it -> report: gradients are added up, and nothing moves."""
    own = {"supervised": arm.supervised, "policy": arm.learns, "entropy": arm.learns, "kl": arm.kl,
           "value": arm.value}
    terms = " ".join(f"{name}_term" for name, there in own.items() if there)
    return wire(
        # the terms of the loss, each a scalar; the supervised one counts in the first update epoch alone
        *when(arm.supervised, ("loss", "supervised_term", supervised.supervised_term, "task state experience update_epoch")),
        # log-probabilities of the stored actions under the present policy [P, G, L], with its graph
        *when(arm.learns,
              ("loss", "scores", scoring.score_actions, "algorithm training task state experience update_epoch"),
              ("loss", "policy_term", policy.policy_term, "algorithm scores experience"),
              ("loss", "entropy_term", entropy.entropy_term, "scores experience")),
        *when(arm.kl, ("loss", "kl_term", kl.kl_term, "algorithm scores experience")),
        *when(arm.value, ("loss", "value_term", value.value_term, "algorithm scores experience")),
        # their sum, each weighed by its schedule at this step
        ("loss", "losses", mixing.mix_losses, f"algorithm task state {terms}"),
        ("loss", "report", update.add_gradient,
         f"training task state losses experience update_epoch {'scores' if arm.learns else ''}"),
    )


def move(arm: Parts) -> Pipeline:
    """Wire report -> next_state and step_metrics: here alone weights change."""
    stops = "stops" if arm.bounds_kl else ""
    return wire(
        *when(arm.bounds_kl, ("", "stops", target_kl.exceeds_target, "algorithm report experience update_epoch")),
        ("", "next_state step_metrics", update.apply_update,
         f"algorithm training task state report experience update_epoch {stops}"),
        *when(arm.corrects, ("", "step_metrics", correction.report_mismatch, "algorithm step_metrics experience update_epoch")),
        *when(arm.moves_reference, ("", "next_state", reference.move_reference,
                                    f"algorithm next_state update_epoch {stops}")),
        *when(arm.steers_entropy, ("", "next_state", entropy.steer_entropy,
                                   f"algorithm next_state report update_epoch {stops}")),
    )


def whole(arm: Parts) -> Pipeline:
    """Wire the whole step with its first update epoch: task, state and batch -> next_state and step_metrics."""
    begin = wire(
        ("loss", "update_epoch", update.first_update_epoch, ""),
        *when(arm.replays, ("sample", "replayed", replay.nothing_replayed, "")),
    )
    return begin + collect(arm) + learn(arm) + move(arm)
