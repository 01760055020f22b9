"""The step of an arm, from a batch to the next state: the loop, the first step and the graph are all made of these tables.

P prompts, G samples of each, L decisions of a sample. Parts act at four places: after the sampling, after the reward, as terms
of the loss, after the update. A part that the arm does not have is no row.
"""

from kedro.pipeline import Pipeline

from grpo_pipeline.pipelines.step.collect import (
    collect_experience,
    compute_advantages,
    compute_rewards,
    credit_decisions,
    decode_rollouts,
    dynamic_sampling,
    encode_batch,
    nothing_replayed,
    penalise_kl,
    predict_values,
    replay_groups,
    replicate_batch,
    sample_rollouts,
    score_reference,
)  # fmt: skip
from grpo_pipeline.pipelines.step.parts import Parts
from grpo_pipeline.pipelines.step.update import (
    add_gradient,
    apply_update,
    first_update_epoch,
    mix_losses,
    move_reference,
    policy_terms,
    steer_entropy,
    supervised_term,
)  # fmt: skip
from grpo_pipeline.pipelines.step.wire import when, wire

# fmt: off
OF_STEP = "algorithm training task state"
OF_SAMPLES = "task state context rollouts temperature"
HELD = "batch replicated context rollouts temperature outcomes rewards advantages"


def collect(arm: Parts) -> Pipeline:
    """Wire task, state and batch -> experience: once per batch."""
    own = {"resampling": arm.resamples, "importance": arm.replays, "reference": arm.reads_reference, "values": arm.reads_values}
    own_names = [name for name, is_there in own.items() if is_there]
    weighed = [name for name in ("values", "importance") if own[name]]
    return wire(
        # what is known of each prompt [P, ...], given to each of its samples [P, G, ...]
        [("", "replicated", replicate_batch, "training task batch"),
         # each prompt once, with the graph of the encoder
         ("sample", "context", encode_batch, "task state batch"),
         # actions and their log-probabilities [P, G, L]
         ("sample", "rollouts temperature", sample_rollouts, f"{OF_STEP} context")],
        when(arm.resamples, ("sample", "rollouts resampling", dynamic_sampling, f"algorithm training replicated {OF_SAMPLES}")),
        # how likely the policy is to draw a stored sample, to how likely it was: [P, G]
        when(arm.replays, ("sample", "rollouts importance", replay_groups, f"algorithm replayed {OF_SAMPLES}")),
        # what the samples lead to, with the graph of the decoders
        [("sample", "outcomes", decode_rollouts, "task state context rollouts replicated"),
         # named parts and their weighted total, each [P, G]; NaN where a sample was not scored
         ("reward", "rewards", compute_rewards, "task replicated rollouts outcomes")],
        # what each decision has contributed: [P, G, L]
        when(arm.credits, ("reward", "rewards", credit_decisions, "algorithm task state context rollouts replicated rewards")),
        # log-probabilities of the same actions [P, G, L]
        when(arm.reads_reference, ("reward", "reference", score_reference, "algorithm task state batch rollouts temperature")),
        when(arm.pays_kl, ("reward", "rewards", penalise_kl, "algorithm state rewards rollouts reference")),
        # the reward that is expected of each prompt: [P]
        when(arm.reads_values, ("advantage", "values", predict_values, OF_SAMPLES)),
        # [P, G], or [P, G, L] of decisions
        [("advantage", "advantages", compute_advantages, " ".join(["algorithm task replicated rewards", *weighed])),
         ("advantage", "experience", collect_experience, " ".join([HELD, *own_names]))],
    )


def learn(arm: Parts) -> Pipeline:
    """Wire an experience, or a piece of it -> report: gradients are added up, and nothing moves."""
    terms, scores = ("policy_losses", "scores") if arm.learns else ("", "")
    return wire(
        # a scalar for each term
        when(arm.learns, ("loss", "policy_losses scores", policy_terms, f"{OF_STEP} experience update_epoch")),
        [("loss", "supervised_losses", supervised_term, "task state experience update_epoch"),
         # their sum, each weighed by its schedule at this step
         ("loss", "losses", mix_losses, f"algorithm task state supervised_losses {terms}"),
         ("loss", "report", add_gradient, f"training task state losses experience update_epoch {scores}")],
    )


def move(arm: Parts) -> Pipeline:
    """Wire report -> next_state and step_metrics: here alone weights change."""
    return wire(
        [("", "next_state step_metrics", apply_update, f"{OF_STEP} report experience update_epoch")],
        when(arm.moves_reference, ("", "next_state", move_reference, "algorithm next_state update_epoch")),
        when(arm.steers_entropy, ("", "next_state", steer_entropy, "algorithm next_state report update_epoch")),
    )


def whole(arm: Parts) -> Pipeline:
    """Wire the whole step with its first update epoch: task, state and batch -> next_state and step_metrics."""
    return wire(
        [("loss", "update_epoch", first_update_epoch, "")],
        when(arm.replays, ("sample", "replayed", nothing_replayed, "")),
    ) + collect(arm) + learn(arm) + move(arm)
