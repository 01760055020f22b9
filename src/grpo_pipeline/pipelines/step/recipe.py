"""The step of an arm, from a batch to the next state: the loop, the first step and the graph are all made of these tables.

P prompts, G samples of each, L decisions of a sample. These rows are in every step. A part that an arm has adds its own rows at
a named place (``parts``); ``name?`` is an input that only some parts make.
"""

from kedro.pipeline import Pipeline

from grpo_pipeline.pipelines.step import (
    advantages,
    experience,
    mixing,
    reward,
    sampling,
    update,
)
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.step.wire import wire


# fmt: off
def collect(arm: Parts) -> Pipeline:
    """Wire task, state and batch -> experience: once per batch."""
    return wire(
        # what is known of each prompt [P, ...], given to each of its samples [P, G, ...]
        ("", "replicated", sampling.replicate_batch, "training task batch"),
        # each prompt once, with the graph of the encoder
        ("sample", "context", sampling.encode_batch, "task state batch"),
        # actions and their log-probabilities [P, G, L]
        ("sample", "rollouts temperature", sampling.sample_rollouts, "algorithm training task state context"),
        *arm.rows("after_sampling"),
        # what the samples lead to, with the graph of the decoders
        ("sample", "outcomes", sampling.decode_rollouts, "task state context rollouts replicated"),
        # named parts and their weighted total, each [P, G]; NaN where a sample was not scored
        ("reward", "rewards", reward.compute_rewards, "task replicated rollouts outcomes"),
        *arm.rows("after_reward"),
        # [P, G], or [P, G, L] of decisions
        ("advantage", "advantages", advantages.compute_advantages,
         "algorithm task replicated rewards rollouts values?"),
        *arm.rows("after_advantage"),
        ("advantage", "experience", experience.collect_experience,
         "batch replicated context rollouts temperature outcomes rewards advantages "
         "resampling? importance? mismatch? reference? values? selected?"),
    )


def learn(arm: Parts) -> Pipeline:
    """Wire an experience, or a piece of it -> report: gradients are added up, and nothing moves."""
    return wire(
        # the terms of the loss, each a scalar
        *arm.rows("loss"),
        # their sum, each weighed by its schedule at this step
        ("loss", "losses", mixing.mix_losses,
         "algorithm task state supervised_term? policy_term? entropy_term? kl_term? value_term?"),
        ("loss", "report", update.add_gradient, "training task state losses experience update_epoch scores?"),
    )


def move(arm: Parts) -> Pipeline:
    """Wire report -> next_state and step_metrics: here alone weights change."""
    return wire(
        *arm.rows("before_update"),
        ("", "next_state step_metrics", update.apply_update,
         "algorithm training task state report experience update_epoch stops?"),
        *arm.rows("after_update"),
    )


def whole(arm: Parts) -> Pipeline:
    """Wire the whole step with its first update epoch: task, state and batch -> next_state and step_metrics."""
    begin = wire(("loss", "update_epoch", update.first_update_epoch, ""), *arm.rows("alone"))
    return begin + collect(arm) + learn(arm) + move(arm)
