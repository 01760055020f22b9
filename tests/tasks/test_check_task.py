"""``check_task`` accepts every task that keeps its promises, and says each broken one in one sentence.

A planted error is one changed method of an example: what a stranger writes by mistake. Those of ``QUICK`` are found before the
first step of a training, too.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch import Tensor, nn

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.types import Rollouts, Scores
from grpo_pipeline.pipelines.training.first_ratio import check_first_ratio
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.pipelines.training.start import build_probe_state, build_state
from grpo_pipeline.testing import CHECKS, QUICK, TaskContractError, check_quickly, check_task, reports, subject_of
from grpo_pipeline.testing.subject import first_difference, moved_weights

TESTS = Path(__file__).resolve().parents[1]
EXAMPLES = [str(TESTS / name) for name in ("example_task", "example_sequences")]
sys.path[:0] = EXAMPLES

from digits.pipeline import load_pictures  # noqa: E402
from digits.spec import SPEC as DIGITS  # noqa: E402
from digits.task import DigitsTask  # noqa: E402
from digits.task import ModelParams as DigitsModel  # noqa: E402
from reverse.pipeline import make_words  # noqa: E402
from reverse.spec import ModelParams  # noqa: E402
from reverse.task import STOP, ReverseTask  # noqa: E402

PICTURES, WORDS = load_pictures({"pictures": 60}), make_words({"letters": 3, "seed": 1})
Fault = Callable[[Any], dict[str, Callable[..., Any]]]


def digits() -> DigitsTask:
    return DigitsTask(DigitsModel(hidden=6))


def reverse() -> ReverseTask:
    return ReverseTask(ModelParams(width=12))


MADE = {"digits": (digits, PICTURES), "reverse": (reverse, WORDS)}
FAULTS: dict[str, tuple[str, str, str, Callable[..., Any]]] = {}


def fault(task: str, method: str, rule: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Plant an error: a function of (the right task, its arguments) in the place of a method; ``rule`` is in the sentence."""

    def plant(function: Callable[..., Any]) -> Callable[..., Any]:
        FAULTS[function.__name__] = (task, method, rule, function)
        return function

    return plant


def planted(name: str) -> tuple[Any, Any]:
    task_name, method, _, function = FAULTS[name]
    make, data = MADE[task_name]
    right = make()
    body = lambda self, *args, **kwargs: function(right, *args, **kwargs)  # noqa: E731
    kind = type(type(right).__name__, (type(right),), {method: body, "__module__": type(right).__module__})
    return kind(right.model), data


# The thirteen of which six went unsaid.


@fault("reverse", "score", "return the log-probabilities of Task.sample")
def scores_at_temperature_1(task, policy, context, rollouts, *, temperature):
    return task.score(policy, context, rollouts, temperature=1.0)


@fault("digits", "sample", "draw random numbers from the generator")
def samples_from_the_global_stream(task, policy, context, group_size, *, generator, **kwargs):
    return task.sample(policy, context, group_size, generator=None, **kwargs)


@fault("reverse", "sample", "set is_valid to False after a sample's end")
def calls_everything_valid(task, policy, context, group_size, **kwargs):
    drawn = task.sample(policy, context, group_size, **kwargs)
    return replace(drawn, is_valid=torch.ones_like(drawn.is_valid))


@fault("reverse", "sample", "set is_valid to False after a sample's end")
def calls_the_padding_drawn(task, policy, context, group_size, *, temperature, **kwargs):
    drawn = task.sample(policy, context, group_size, temperature=temperature, **kwargs)
    if not drawn.actions.shape[2]:
        return drawn
    drawn = replace(drawn, is_valid=torch.ones_like(drawn.is_valid))
    return replace(drawn, logprobs=task.score(policy, context, drawn, temperature=temperature).logprobs.detach())


@dataclass(frozen=True)
class Scaled:
    rows: Tensor
    word: Tensor
    target: Tensor
    scale: Tensor


@fault("reverse", "make_batch", "give every tensor of the batch the prompts as its first axis")
def has_a_tensor_of_no_prompt(task, data, rows, *, generator=None):
    return Scaled(**vars(task.make_batch(data, rows)), scale=torch.ones(7))


@fault("digits", "evaluate", "return what the metric accuracy is computed from")
def leaves_out_a_metric(task, policy, data, rows, *, seed, n_samples):
    return task.evaluate(policy, data, rows, seed=seed, n_samples=n_samples).drop(columns="accuracy")


@fault("digits", "reward", "be NaN, not scored, where no decision was taken")
def pays_nothing_for_nothing(task, batch, rollouts, outcomes):
    return {"right": (rollouts.actions == batch.label[..., None]).double().sum(-1)}, {"right": 1.0}


@fault("digits", "encode", "return a context, got None")
def has_no_context(task, policy, batch):
    return None


@fault("digits", "sample", "draw without a graph")
def samples_with_a_graph(task, policy, context, group_size, *, proposal, temperature, generator):
    with torch.enable_grad():
        drawn = task.sample(policy, context, group_size, proposal=proposal, temperature=temperature, generator=generator)
        return replace(drawn, logprobs=drawn.logprobs + 0.0 * next(policy.parameters()).sum())


@fault("digits", "reward", "return right as floating-point [3, 4]")
def rewards_each_prompt(task, batch, rollouts, outcomes):
    parts, weights = task.reward(batch, rollouts, outcomes)
    return {name: part.mean(1) for name, part in parts.items()}, weights


@fault("digits", "replicate", "leave batch.rows as it is, or repeat it")
def replicates_in_the_wrong_order(task, batch, group_size):
    repeated = {name: x.repeat(group_size, *[1] * (x.ndim - 1)) for name, x in vars(batch).items()}
    return replace(batch, **{name: x.unflatten(0, (-1, group_size)) for name, x in repeated.items()})


@fault("digits", "parameter_groups", "hold every trainable parameter exactly once")
def leaves_a_parameter_out(task, policy):
    return {"policy": [*policy.parameters()][1:]}


@fault("digits", "parameter_groups", "hold every trainable parameter exactly once")
def has_a_parameter_twice(task, policy):
    return {"policy": [*policy.parameters()], "head": [*policy.parameters()][-1:]}


@fault("digits", "supervised_loss", "return a finite scalar with a graph")
def supervises_without_a_graph(task, *args):
    return task.supervised_loss(*args).detach()


# What else a stranger may do.


@fault("digits", "build_policy", "give the same weights for the same seed")
def builds_from_the_global_stream(task, seed):
    with torch.random.fork_rng():
        return nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))


@fault("digits", "build_policy", "give other weights for another seed")
def builds_the_same_for_every_seed(task, seed):
    return task.build_policy(0)


@fault("digits", "build_policy", "draw random numbers from the generator or the seed")
def seeds_the_global_stream(task, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))


@fault("digits", "rows", "put each row into one split once")
def splits_overlap(task, data, split):
    return task.rows(data, split) if split == "train" else np.append(task.rows(data, split), task.rows(data, "train")[:1])


@fault("digits", "rows", "return row numbers, int64 [n]")
def returns_a_mask(task, data, split):
    return data.table["split"].to_numpy() == split


@fault("digits", "make_batch", "return the same for the same rows and the same generator")
def counts_its_calls(task, data, rows, *, generator=None):
    CALLS.append(1)
    batch = task.make_batch(data, rows)
    return replace(batch, pixels=batch.pixels + len(CALLS))


CALLS: list[int] = []


@fault("digits", "make_batch", "draw random numbers from the generator")
def augments_with_numpy(task, data, rows, *, generator=None):
    batch = task.make_batch(data, rows)
    return replace(batch, pixels=batch.pixels + float(np.random.rand()))  # noqa: NPY002


@dataclass(frozen=True)
class Named:
    rows: Tensor
    pixels: Tensor
    label: Tensor
    names: list[str]


@fault("digits", "make_batch", "hold what belongs to single prompts as a tensor or PerPrompt")
def has_a_list_of_texts(task, data, rows, *, generator=None):
    return Named(**vars(task.make_batch(data, rows)), names=[str(row) for row in rows])


@fault("digits", "make_batch", "leave the data as they are")
def changes_the_data(task, data, rows, *, generator=None):
    data.pixels[rows, 0] = 0.5
    return task.make_batch(data, rows)


@fault("digits", "encode", "leave the policy as it is, got changed weights")
def encodes_with_a_running_mean(task, policy, batch):
    with torch.no_grad():
        policy[0].bias.mul_(1.0)
    return batch


@fault("digits", "encode", "leave the policy as it is, got changed the mode")
def leaves_the_policy_in_eval(task, policy, batch):
    policy.eval()
    return batch


@fault("digits", "encode", "draw random numbers from the generator")
def encodes_with_dropout(task, policy, batch):
    return replace(batch, pixels=nn.functional.dropout(batch.pixels, 0.5))


@fault("reverse", "detach", "return the context without a graph")
def detaches_nothing(task, context):
    return replace(context, word=context.word.float().requires_grad_())


@fault("digits", "sample", "return int64 actions of shape [3, 4, L]")
def samples_one_too_few(task, policy, context, group_size, **kwargs):
    return task.sample(policy, context, group_size - 1, **kwargs)


@fault("digits", "sample", "return int64 actions of shape [3, 4, L]")
def samples_rows(task, policy, context, group_size, **kwargs):
    drawn = task.sample(policy, context, group_size, **kwargs)
    return Rollouts(*(x.flatten(0, 1) for x in (drawn.actions, drawn.logprobs, drawn.is_valid)))


@fault("digits", "sample", "return bool is_valid")
def masks_with_numbers(task, policy, context, group_size, **kwargs):
    drawn = task.sample(policy, context, group_size, **kwargs)
    return replace(drawn, is_valid=drawn.is_valid.long())


@fault("digits", "sample", "return log-probabilities, finite and at most 0")
def returns_probabilities(task, policy, context, group_size, **kwargs):
    drawn = task.sample(policy, context, group_size, **kwargs)
    return replace(drawn, logprobs=drawn.logprobs.exp())


@fault("digits", "sample", "return int64 actions of shape [3, 4, 0]")
def draws_where_none_is_wanted(task, policy, context, group_size, *, proposal, **kwargs):
    return task.sample(policy, context, group_size, proposal="policy", **kwargs)


@fault("digits", "sample", "draw for each prompt apart")
def draws_the_same_for_every_prompt(task, policy, context, group_size, **kwargs):
    drawn = task.sample(policy, context, group_size, **kwargs)
    actions = drawn.actions[:1].expand_as(drawn.actions)
    return replace(drawn, actions=actions, logprobs=task.score(policy, context, Rollouts(actions, drawn.logprobs, drawn.is_valid),
                   temperature=kwargs["temperature"]).logprobs.detach())  # fmt: skip


@fault("digits", "sample", "draw others from another generator")
def seeds_its_own_generator(task, policy, context, group_size, *, generator, **kwargs):
    return task.sample(policy, context, group_size, generator=torch.Generator().manual_seed(3), **kwargs)


@fault("digits", "sample", "draw the same from a generator of the same seed")
def forks_the_global_stream(task, policy, context, group_size, *, generator, **kwargs):
    with torch.random.fork_rng():
        return task.sample(policy, context, group_size, generator=None, **kwargs)


@fault("reverse", "score", "return the log-probability 0 where is_valid is False")
def scores_the_padding(task, policy, context, rollouts, *, temperature):
    unmasked = replace(rollouts, is_valid=torch.ones_like(rollouts.is_valid))
    scores = task.score(policy, context, rollouts, temperature=temperature)
    return replace(scores, logprobs=task.score(policy, context, unmasked, temperature=temperature).logprobs)


@fault("digits", "score", "return floating-point logprobs of shape [3, 4, 1]")
def sums_over_decisions(task, policy, context, rollouts, *, temperature):
    scores = task.score(policy, context, rollouts, temperature=temperature)
    return replace(scores, logprobs=scores.logprobs.sum(-1))


@fault("digits", "score", "return floating-point entropy of shape [3]")
def has_one_entropy(task, policy, context, rollouts, *, temperature):
    scores = task.score(policy, context, rollouts, temperature=temperature)
    return replace(scores, entropy=scores.entropy.mean())


@fault("digits", "score", "return an entropy in nats, at least 0")
def turns_the_entropy_round(task, policy, context, rollouts, *, temperature):
    scores = task.score(policy, context, rollouts, temperature=temperature)
    return replace(scores, entropy=-scores.entropy)


@fault("digits", "score", "return the entropy of log_probs_full")
def has_an_entropy_in_bits(task, policy, context, rollouts, *, temperature):
    scores = task.score(policy, context, rollouts, temperature=temperature)
    return replace(scores, entropy=scores.entropy / np.log(2))


@fault("reverse", "score", "return the analytic entropy")
def estimates_the_entropy_from_samples(task, policy, context, rollouts, *, temperature):
    scores = task.score(policy, context, rollouts, temperature=temperature)
    return replace(scores, entropy=-scores.logprobs.sum((1, 2)) / rollouts.is_valid.sum((1, 2)))


@fault("digits", "score", "return logprobs with a graph to the policy")
def scores_without_a_graph(task, policy, context, rollouts, *, temperature):
    with torch.no_grad():
        return task.score(policy, context, rollouts, temperature=temperature)


@fault("digits", "score", "return the log-probabilities of Task.sample")
def scores_half_of_it(task, policy, context, rollouts, *, temperature):
    scores = task.score(policy, context, rollouts, temperature=temperature)
    return replace(scores, logprobs=0.999 * scores.logprobs)


@fault("digits", "score", "score each prompt by itself, whatever else is in the batch")
def normalises_over_the_batch(task, policy, context, rollouts, *, temperature):
    mean = context.pixels.mean(0, keepdim=True) if len(context.pixels) < 3 else 0.0
    return task.score(policy, replace(context, pixels=context.pixels - mean), rollouts, temperature=temperature)


@fault("reverse", "score_with_kl", "return KL(policy || reference)")
def turns_the_kl_round(task, policy, context, rollouts, *, reference, temperature):
    turned = task.score_with_kl(reference, context, rollouts, reference=policy, temperature=temperature)
    return replace(task.score(policy, context, rollouts, temperature=temperature), kl=3.0 * turned.kl)


@fault("reverse", "score_with_kl", "return kl of shape")
def forgets_the_kl(task, policy, context, rollouts, *, reference, temperature):
    return task.score(policy, context, rollouts, temperature=temperature)


@fault("digits", "decode", "return what the samples lead to, got None")
def decodes_nothing(task, policy, context, rollouts, batch):
    return None


@fault("digits", "reward", "weigh exactly its components")
def weighs_another_component(task, batch, rollouts, outcomes):
    return task.reward(batch, rollouts, outcomes)[0], {"wrong": 1.0}


@fault("digits", "reward", "without a graph")
def rewards_with_a_graph(task, batch, rollouts, outcomes):
    parts, weights = task.reward(batch, rollouts, outcomes)
    return {name: part.requires_grad_() for name, part in parts.items()}, weights


@fault("digits", "reward", "give each sample its own right, whatever its place in the group")
def rewards_the_sample_beside(task, batch, rollouts, outcomes):
    parts, weights = task.reward(batch, rollouts, outcomes)
    return {name: part + torch.arange(part.shape[1]) for name, part in parts.items()}, weights


@fault("digits", "reward", "give each sample its own right, whatever the place of its prompt")
def rewards_another_prompt(task, batch, rollouts, outcomes):
    parts, weights = task.reward(replace(batch, label=batch.label.roll(1, 0) + batch.label), rollouts, outcomes)
    return {name: part + torch.arange(len(part))[:, None] for name, part in parts.items()}, weights


@fault("digits", "reward", "finite, or NaN where a sample was not scored")
def rewards_infinitely(task, batch, rollouts, outcomes):
    parts, weights = task.reward(batch, rollouts, outcomes)
    return {name: part.log() for name, part in parts.items()}, weights


@fault("digits", "reward", "know the weight of the component right, 0.5")
def weighs_otherwise_than_planned(task, batch, rollouts, outcomes):
    return task.reward(batch, rollouts, outcomes)[0], {"right": 0.5}


@fault("digits", "supervised_loss", "return a finite scalar with a graph")
def supervises_each_prompt(task, policy, context, batch, outcomes, shares=None):
    return policy(context.pixels).sum(-1)


@fault("digits", "supervised_loss", "return a finite scalar with a graph")
def supervises_with_nan(task, *args):
    return task.supervised_loss(*args) * float("nan")


@fault("digits", "supervised_loss", "add up over micro-batches to the loss of the batch")
def forgets_its_share(task, policy, context, batch, outcomes, shares=None):
    return task.supervised_loss(policy, context, batch, outcomes)


@fault("reverse", "supervised_counts", "add up over micro-batches")
def counts_nothing_right(task, batch):
    return torch.tensor([7.0], dtype=torch.float64)


@fault("digits", "evaluate", "return a table with the column rule")
def evaluates_without_rules(task, *args, **kwargs):
    return task.evaluate(*args, **kwargs).drop(columns="rule")


@fault("digits", "evaluate", "draw random numbers from the generator or the seed")
def evaluates_at_random(task, policy, data, rows, *, seed, n_samples):
    found = task.evaluate(policy, data, rows, seed=seed, n_samples=n_samples)
    return found.assign(reward=found["reward"] + torch.rand(len(found)).numpy())


@fault("digits", "evaluate", "return the columns digit_id, label")
def forgets_the_unit(task, *args, **kwargs):
    return task.evaluate(*args, **kwargs).rename(columns={"digit_id": "id"})


@fault("digits", "evaluate", "return a row of every one of")
def leaves_examples_out(task, policy, data, rows, *, seed, n_samples):
    return task.evaluate(policy, data, rows[1:], seed=seed, n_samples=n_samples)


@fault("digits", "evaluate", "return a row of every one of")
def leaves_out_what_is_not_defined(task, policy, data, rows, *, seed, n_samples):
    found = task.evaluate(policy, data, rows, seed=seed, n_samples=n_samples)
    return found[found["digit_id"] != found["digit_id"].iloc[1]]


@fault("digits", "evaluate", "return one row per digit_id and rule")
def evaluates_twice(task, policy, data, rows, *, seed, n_samples):
    return task.evaluate(policy, data, np.append(rows, rows[:1]), seed=seed, n_samples=n_samples)


@fault("digits", "evaluate", "leave the policy as it is, got changed the mode")
def evaluates_and_stays_in_eval(task, policy, *args, **kwargs):
    return task.evaluate(policy.eval(), *args, **kwargs)


@fault("digits", "validate", "return numbers by name")
def validates_with_tensors(task, *args, **kwargs):
    return {"reward/mean": torch.ones(2)}


@fault("digits", "tabulate", "return one row for each of 12 samples")
def tabulates_prompts(task, data, batch, rollouts):
    return task.tabulate(data, batch, rollouts).drop_duplicates("row")


@fault("digits", "tabulate", "number the samples of each prompt")
def tabulates_in_another_order(task, data, batch, rollouts):
    return task.tabulate(data, batch, rollouts).sort_values(["sample", "row"])


@fault("digits", "describe", "return what JSON can hold")
def describes_with_tensors(task, policy):
    return {"weights": torch.ones(2)}


@fault("digits", "describe", "return the same each time")
def describes_by_its_address(task, policy):
    return {"policy": repr(object())}


@fault("digits", "fingerprint", "return what JSON can hold")
def has_an_infinite_fingerprint(task, data, *, draws=True):
    return {"limit": float("inf")}


@fault("digits", "score", "run, got RuntimeError")
def raises(task, policy, context, rollouts, *, temperature):
    return Scores(policy(context.pixels[:, :3]), rollouts.logprobs)


# Each half of a check, where the other half has nothing to say.


@fault("digits", "rows", "find examples of test")
def has_no_rows_to_test(task, data, split):
    return task.rows(data, split)[: 0 if split == "test" else None]


@fault("digits", "rows", "put each row into one split once")
def validates_what_it_tests(task, data, split):
    return np.append(task.rows(data, split), task.rows(data, "val")[:1]) if split == "test" else task.rows(data, split)


@fault("digits", "rows", "return the same rows of val each time")
def shuffles_its_rows(task, data, split):
    CALLS.append(1)
    return np.roll(task.rows(data, split), len(CALLS)) if split == "val" else task.rows(data, split)


@fault("digits", "make_batch", "give every tensor of the batch the prompts as its first axis")
def fills_a_short_batch(task, data, rows, *, generator=None):
    return task.make_batch(data, np.resize(rows, 3))


@fault("digits", "make_batch", "return the same for the same rows and the same generator")
def augments_by_its_calls(task, data, rows, *, generator=None):
    CALLS.append(1)
    batch = task.make_batch(data, rows)
    return batch if generator is None else replace(batch, pixels=batch.pixels + len(CALLS))


@fault("digits", "encode", "return the same each time")
def encodes_by_its_calls(task, policy, batch):
    CALLS.append(1)
    return replace(batch, pixels=batch.pixels + len(CALLS))


@fault("digits", "detach", "keep every value")
def detaches_another_context(task, context):
    return replace(context, pixels=2 * context.pixels)


@fault("reverse", "replicate", "leave batch.")
def replicates_other_values(task, batch, group_size):
    repeated = task.replicate(batch, group_size)
    return replace(repeated, **{name: x + 1 for name, x in vars(repeated).items() if isinstance(x, Tensor)})


@fault("digits", "parameter_groups", "hold every trainable parameter exactly once, got one that is not trained")
def holds_a_frozen_parameter(task, policy):
    return {"policy": [*policy.parameters(), nn.Parameter(torch.ones(1), requires_grad=False)]}


@fault("digits", "parameter_groups", "hold groups with parameters, got head without any")
def has_an_empty_group(task, policy):
    return {"policy": [*policy.parameters()], "head": []}


@fault("reverse", "sample", "return the log-probability 0 where is_valid is False")
def tells_a_chance_of_its_padding(task, policy, context, group_size, **kwargs):
    drawn = task.sample(policy, context, group_size, **kwargs)
    return replace(drawn, logprobs=drawn.logprobs.masked_fill(~drawn.is_valid, -0.5))


@fault("digits", "sample", "draw the same from a generator of the same seed")
def samples_by_its_calls(task, policy, context, group_size, **kwargs):
    CALLS.append(1)
    drawn = task.sample(policy, context, group_size, **kwargs)
    return drawn if group_size < 16 else replace(drawn, actions=drawn.actions.roll(len(CALLS), 1))


@fault("reverse", "score", "return the log-probability 0 where is_valid is False")
def scores_its_padding_below_0(task, policy, context, rollouts, *, temperature):
    scores = task.score(policy, context, rollouts, temperature=temperature)
    return replace(scores, logprobs=scores.logprobs.masked_fill(~rollouts.is_valid, -0.5))


@fault("digits", "score", "return the log-probabilities of Task.sample")
def scores_one_sample_otherwise(task, policy, context, rollouts, *, temperature):
    scores = task.score(policy, context, rollouts, temperature=temperature)
    is_first = torch.zeros_like(scores.logprobs).index_fill(0, torch.tensor([0]), 1.0)
    return replace(scores, logprobs=scores.logprobs - 0.5 * is_first)


@fault("digits", "score_reference", "say of a policy what score says of it")
def references_at_another_temperature(task, reference, batch, rollouts, *, temperature):
    return task.score_reference(reference, batch, rollouts, temperature=1.1 * temperature)


@fault("digits", "prompt_weights", "return finite weights of shape [3] ([P]), at least 0, or None")
def weighs_a_prompt_below_0(task, batch):
    return torch.tensor([1.0, -0.5, 1.0])


@fault("digits", "subset_rewards", "return [P, G, M], for all decisions the reward of the sample")
def pays_parts_twice(task, policy, context, rollouts, batch, *, kept):
    total = task.reward(batch, rollouts, None)[0]["right"]
    return (2 * total[..., None] + 1).expand(-1, -1, len(kept))


@fault("digits", "reward", "return right finite, or NaN where a sample was not scored")
def rewards_one_sample_infinitely(task, batch, rollouts, outcomes):
    parts, weights = task.reward(batch, rollouts, outcomes)
    return {"right": parts["right"].index_fill(0, torch.tensor([1]), float("inf"))}, weights


@fault("digits", "validate", "return finite numbers, got reward/mean = inf")
def validates_infinitely(task, *args, **kwargs):
    return {"share": 0.5, "reward/mean": float("inf")}


@fault("digits", "validate", "return the same for the same seed")
def validates_by_its_calls(task, *args, **kwargs):
    CALLS.append(1)
    return {"share": float(len(CALLS))}


@fault("digits", "evaluate", "return one row per digit_id and rule")
def evaluates_twice_with_other_numbers(task, *args, **kwargs):
    found = task.evaluate(*args, **kwargs)
    return pd.concat([found, found.assign(reward=0.25)])


@fault("digits", "tabulate", "return one row for each of 12 samples")
def tabulates_twice(task, data, batch, rollouts):
    return pd.concat([task.tabulate(data, batch, rollouts)] * 2)


@fault("digits", "describe", "return the same each time")
def describes_by_as_many_letters(task, policy):
    CALLS.append(1)
    return {"policy": f"{len(CALLS) % 10}"}


@fault("digits", "decode", "leave the policy as it is, got changed gradients")
def decodes_with_a_backward_pass(task, policy, context, rollouts, batch):
    torch.autograd.backward(policy(context.pixels).sum())
    return ()


def first_sentence(task: Any, data: Any) -> str:
    try:
        check_task(task, data)
    except TaskContractError as error:
        return str(error)
    return "nothing"


def test_a_planted_error_is_said_in_one_sentence_of_its_method_and_rule() -> None:
    """One test for all: which error is not said, and what is said instead, is seen side by side."""
    wrong = {}
    for name, (_, method, rule, _) in FAULTS.items():
        task, data = planted(name)
        data = replace(data, pixels=data.pixels.copy()) if name == "changes_the_data" else data
        said = first_sentence(task, data)
        shown = "audit_plan" if "planned" in name else method
        start = f"{type(task).__name__}.{shown} of the task {task.name} must "
        if not (said.startswith(start) and rule in said and ", got " in said and "; " in said and "\n" not in said):
            wrong[name] = said
    assert wrong == {}
    assert len(FAULTS) >= 70


def test_a_temperature_that_sampler_and_score_both_forget_is_noticed() -> None:
    class Forgetful(ReverseTask):
        def sample(self, *args: Any, temperature: float, **kwargs: Any) -> Rollouts:
            return super().sample(*args, temperature=1.0, **kwargs)

        def score(self, *args: Any, temperature: float) -> Scores:
            return super().score(*args, temperature=1.0)

    rule = "Forgetful.score of the task reverse must divide the logits by the temperature, got the same log-probabilities at 0.7"
    with pytest.raises(TaskContractError, match=rule):
        check_task(Forgetful(ModelParams(width=12)), WORDS)


def test_a_forced_decision_is_no_padding() -> None:
    """The second letter is always a stop: probability 1, and a decision all the same."""

    class Forced(ReverseTask):
        def score(self, policy: Any, context: Any, rollouts: Rollouts, *, temperature: float) -> Scores:
            scores = super().score(policy, context, rollouts, temperature=temperature)
            at = torch.arange(rollouts.actions.shape[2]) == 1
            forced = torch.where(rollouts.actions == STOP, 0.0, -torch.inf)
            return replace(scores, logprobs=torch.where(at & rollouts.is_valid, forced, scores.logprobs))

        def sample(self, policy: Any, context: Any, group_size: int, *, temperature: float, **kwargs: Any) -> Rollouts:
            drawn = super().sample(policy, context, group_size, temperature=temperature, **kwargs)
            if drawn.actions.shape[2]:
                forced = torch.cat([drawn.actions[..., :1], 0 * drawn.actions[..., 1:] + STOP], 2)
                drawn = self._rollouts(policy, context, forced, 1.0)
                drawn = replace(drawn, logprobs=self.score(policy, context, drawn, temperature=temperature).logprobs.detach())
            return drawn

    subject = subject_of(Forced(ModelParams(width=12)), WORDS)
    check = next(check for check in CHECKS if check.__name__ == "check_nothing_counts_after_the_end")
    check(subject)


@pytest.mark.parametrize("name", MADE)
def test_a_right_task_passes_and_leaves_every_random_stream_and_the_policy_alone(name: str) -> None:
    make, data = MADE[name]
    before, drawn = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    check_task(make(), data)
    task = make()
    policy = task.build_policy(5).eval()
    weights = {key: value.clone() for key, value in policy.state_dict().items()}
    check_quickly(task, data, policy, rows=task.rows(data, "train"))
    assert all(torch.equal(value, weights[key]) for key, value in policy.state_dict().items())
    assert not any(module.training for module in policy.modules())
    assert all(p.grad is None for p in policy.parameters())
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], drawn)  # noqa: NPY002


def test_a_supervised_loss_that_is_not_part_of_the_objective_is_not_asked_for() -> None:
    class Unsupervised(ReverseTask):
        def supervised_loss(self, *given: Any, **named: Any) -> Any:
            raise ValueError("no answers")

    task = Unsupervised(ModelParams(width=12))
    policy = task.build_policy(5).eval()
    check_quickly(task, WORDS, policy, rows=task.rows(WORDS, "train"), has_supervised=False)
    with pytest.raises(TaskContractError, match="no answers"):
        check_quickly(task, WORDS, policy, rows=task.rows(WORDS, "train"))


def test_it_runs_without_kedro_mlflow_and_pytest() -> None:
    code = (
        "import sys; from grpo_pipeline.testing import check_task\nfrom reverse.task import *\n"
        "words = {'word': ['ab', 'ba', 'abc', 'c', 'dd', 'cab', 'a'], 'split': ['train'] * 3 + ['val', 'test'] * 2}\n"
        "check_task(ReverseTask(ModelParams(width=8)), Words(pd.DataFrame(words)))\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'kedro', 'mlflow', 'pytest'}))"
    )
    given = {"capture_output": True, "text": True, "check": False, "timeout": 200}
    path = [str(TESTS.parent / "src"), *EXAMPLES]
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"], **given)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr[-2000:]


def training_of(task: str, **changes: Any) -> tuple[AlgorithmParams, TrainingParams]:
    """Return parameters of a short training, worked out by the configuration that every task shares."""
    shared = yaml.safe_load((TESTS.parent / "conf/base/parameters_tasks.yml").read_text())["{task}"]
    training = shared["training"] | {"group_size": 4, "device": "cpu", "batch_size": 6} | changes
    training["optimizer"] = shared["training"]["optimizer"] | {"learning_rates": {"policy": 0.01}}
    return AlgorithmParams.model_validate(shared["grpo"]["algorithm"]), TrainingParams.model_validate(training)


QUICKLY = ("calls_everything_valid", "has_a_tensor_of_no_prompt", "has_no_context", "pays_nothing_for_nothing",
           "samples_from_the_global_stream", "samples_with_a_graph", "scores_at_temperature_1")  # fmt: skip


@pytest.mark.parametrize("name", QUICKLY)
def test_the_cheap_half_is_asked_before_the_first_step(name: str) -> None:
    task, data = planted(name)
    algorithm, training = training_of(task.name)
    with pytest.raises(TaskContractError, match=FAULTS[name][2].replace("(", r"\(")):
        build_probe_state(algorithm, training, 0, task, data)
    assert {*QUICK} <= {*CHECKS}


class Empty(ReverseTask):
    """Has no samples at all, as the task of a pretraining."""

    def sample(self, *args: Any, proposal: str, **kwargs: Any) -> Rollouts:
        return super().sample(*args, proposal="none", **kwargs)


def test_a_task_without_samples_may_be_taught_by_its_supervised_loss_alone() -> None:
    task = Empty(ModelParams(width=8))
    algorithm, training = training_of("reverse")
    rule = "Empty.sample of the task reverse must take at least one decision in every sample"
    with pytest.raises(TaskContractError, match=rule):
        build_probe_state(algorithm, training, 0, task, WORDS)
    alone = {"proposal": "none", "losses": {"supervised": {"weight": 1.0}}}
    control = AlgorithmParams.model_validate(algorithm.model_dump() | alone)
    assert build_probe_state(control, training, 0, task, WORDS).step == 0


def test_a_probe_begins_where_the_training_begins() -> None:
    algorithm, training = training_of("reverse")
    before = torch.get_rng_state()
    asked, plain = (build(algorithm, training, 3, reverse(), WORDS) for build in (build_probe_state, build_state))
    expected = plain.policy.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in asked.policy.state_dict().items())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_first_ratio_that_is_not_1_stops_the_run() -> None:
    """A score that is off by one part in 5000 in every log-probability: the sum over about five letters moves the mean ratio."""

    class Off(ReverseTask):
        def score(self, *args: Any, **kwargs: Any) -> Scores:
            scores = super().score(*args, **kwargs)
            return replace(scores, logprobs=1.0002 * scores.logprobs)

    algorithm, training = training_of("reverse")
    for task in (reverse(), Off(ModelParams(width=12))):
        state = build_state(algorithm, training, 0, task, WORDS)
        runner, batch = StepRunner(task, algorithm, training), task.make_batch(WORDS, task.rows(WORDS, "train")[:6])
        if type(task) is ReverseTask:
            assert runner(state, batch)[1]["policy/ratio_first"] == 1.0
            continue
        with pytest.raises(ValueError, match=r"policy/ratio_first must be 1 within 1e-05 at step 0 of reverse, got 0\.9"):
            runner(state, batch)


@pytest.mark.parametrize(
    ("ratio", "level", "precision", "is_refused"),
    [
        (1.00002, "decision", "float32", True),
        (0.99998, "decision", "float32", True),
        (1.000008, "decision", "float32", False),
        (1.00008, "joint", "float32", False),
        (1.00012, "joint", "float32", True),
        (0.985, "decision", "bf16", False),
        (0.975, "decision", "bf16", True),
        (0.985, "decision", "weights", False),  # float32 but for frozen weights
        (0.975, "decision", "weights", True),
        (float("nan"), "decision", "bf16", True),
    ],
)
def test_how_far_a_first_ratio_may_be_from_1(ratio: float, level: str, precision: str, is_refused: bool) -> None:
    network = nn.Linear(1, 1, dtype=torch.bfloat16 if precision == "weights" else torch.float32)
    algorithm, training = training_of("reverse", precision=precision.replace("weights", "float32"))
    policy = algorithm.losses.policy.model_copy(update={"ratio_level": level})
    algorithm = algorithm.model_copy(update={"losses": algorithm.losses.model_copy(update={"policy": policy})})
    if not is_refused:
        check_first_ratio({"policy/ratio_mean": ratio}, algorithm, training, reverse(), network, step=4)
        return
    with pytest.raises(ValueError, match="at step 4 of reverse"):
        check_first_ratio({"policy/ratio_mean": torch.tensor(ratio)}, algorithm, training, reverse(), network, step=4)


def test_a_policy_is_moved_for_its_checks_and_is_afterwards_what_it_was() -> None:
    policy = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1))
    policy[3].requires_grad_(False)
    policy[2].eval()
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    modes = [module.training for module in policy.modules()]
    with moved_weights(policy):
        inside = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
        torch.autograd.backward(policy(torch.ones(4, 2)).sum())  # moves the statistics, too
        policy.eval()
    moved = {name for name in before if not torch.equal(before[name], inside[name])}
    assert moved == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
    assert [module.training for module in policy.modules()] == modes
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_things_differ_in_any_value_type_or_shape_but_not_where_both_are_unknown() -> None:
    one = {"a": torch.tensor([1.0, float("nan")]), "b": [torch.ones(2, dtype=torch.long)]}
    assert first_difference(one, {"a": one["a"].clone(), "b": [torch.ones(2, dtype=torch.long)]}, "x") is None
    for other, place in (
        ({"a": torch.tensor([1.0, 2.0]), "b": one["b"]}, "x['a']"),
        ({"a": one["a"].double(), "b": one["b"]}, "x['a']"),
        ({"a": one["a"], "b": [torch.ones(3, dtype=torch.long)]}, "x['b'][0]"),
        ({"a": one["a"]}, "x['b'][0]"),
    ):
        assert first_difference(one, other, "x") == place
        assert first_difference(other, one, "x") == place


def test_each_check_asks_for_the_rows_of_its_split() -> None:
    asked: dict[str, set[int]] = {}

    class Noting(DigitsTask):
        def evaluate(self, policy: Any, data: Any, rows: np.ndarray, **kwargs: Any) -> Any:
            asked.setdefault("evaluate", set()).update(rows.tolist())
            return super().evaluate(policy, data, rows, **kwargs)

        def validate(self, policy: Any, data: Any, rows: np.ndarray, **kwargs: Any) -> Any:
            asked.setdefault("validate", set()).update(rows.tolist())
            return {"share": 0.5}

        def audit(self, policy: Any, data: Any, rows: np.ndarray, **kwargs: Any) -> Any:
            asked.setdefault("audit", set()).update(rows.tolist())
            return super().audit(policy, data, rows, **kwargs)

    task = Noting(DigitsModel(hidden=6))
    subject = subject_of(task, PICTURES, spec=DIGITS)
    reports.check_predictions_hold_the_metrics(subject)
    reports.check_validation_is_numbers(subject)
    reports.check_audit_rows_fit_their_plan(subject)
    rows = {split: set(task.rows(PICTURES, split).tolist()[: reports.ROWS]) for split in ("val", "test")}
    assert asked == {"evaluate": rows["test"], "validate": rows["val"], "audit": rows["val"]}


def test_a_column_that_is_called_finite_is_so_in_every_row() -> None:
    class Unknown(DigitsTask):
        def evaluate(self, *given: Any, **kwargs: Any) -> Any:
            found = super().evaluate(*given, **kwargs).reset_index(drop=True)
            return found.assign(reward=found["reward"].mask(found.index == 3))

    spec: Any = SimpleNamespace(build_suite=lambda options: replace(DIGITS.build_suite(options), finite=("reward",)))
    reports.check_predictions_hold_the_metrics(subject_of(digits(), PICTURES, spec=spec))
    with pytest.raises(TaskContractError, match="fill reward in every row"):
        reports.check_predictions_hold_the_metrics(subject_of(Unknown(DigitsModel(hidden=6)), PICTURES, spec=spec))
