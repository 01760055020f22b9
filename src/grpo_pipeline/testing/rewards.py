"""Check the results of samples: outcomes, rewards of each sample, and the supervised loss."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.groups import map_tensors
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.training.micro_batches import bounds, take_prompts
from grpo_pipeline.testing.subject import Subject, first_difference, tensors_in, with_samples


def check_nothing_is_paid_for_nothing(s: Subject) -> None:
    """Check that samples without a decision (proposal none) are not scored, NaN, or scored by their prompt alone."""
    rollouts = s.draw(proposal="none")
    outcomes = s.call("decode", s.policy, s.context, rollouts, s.replicated)
    parts = _measured(s, rollouts, outcomes)
    weights = s.call("reward", s.replicated, rollouts, outcomes)[1]
    total = combine_rewards(parts, weights).total
    scored = total[~total.isnan()]
    # Another constant may be right: the value of a prompt alone, if all prompts of the batch are of the same kind.
    if len(scored) and not scored.any():
        s.fail(
            "reward",
            "be NaN, not scored, where no decision was taken (proposal none)",
            "0 for every sample",
            remedy="take the mean over the decisions, or write NaN where rollouts.actions.shape[-1] is 0",
        )
    if s.has_supervised:
        _check_supervised(s, outcomes)


def check_outcomes_are_repeatable(s: Subject) -> None:
    """Check that decode returns a value, the same each time, with the prompts first."""
    again = s.call("decode", s.policy, s.context, s.rollouts, s.replicated)
    if where := first_difference(s.outcomes, again, "outcomes"):
        s.fail(
            "decode",
            "return the same each time",
            f"another {where}",
            remedy="switch dropout off, and draw nothing",
        )
    for path, tensor in tensors_in(s.outcomes, "outcomes"):
        if tensor.ndim == 0 or len(tensor) != s.prompts:
            s.fail(
                "decode",
                "give every tensor of the outcomes the prompts as its first axis",
                f"{path} of shape {list(tensor.shape)}",
                remedy="keep [P, G, ...]: they are cut into micro-batches",
            )


def check_rewards_are_of_each_sample(s: Subject) -> None:
    """Check rewards: components [P, G] without a graph, constant weights, each reward of its own sample and prompt."""
    parts = _measured(s, s.rollouts, s.outcomes)
    weights = s.call("reward", s.replicated, s.rollouts, s.outcomes)[1]
    combine_rewards(parts, weights)
    planned = s.task.audit_plan.weights
    for name, weight in weights.items():
        if name not in planned or abs(planned[name] - weight) > 1e-9:
            s.fail(
                "audit_plan",
                f"know the weight of the component {name}, {weight:g}, before any reward exists",
                f"{planned.get(name, 'nothing')}",
                remedy="set reward_weights to what reward returns",
            )
    order = torch.arange(s.group_size, device=s.rollouts.actions.device).flip(0)
    turned = with_samples(s.rollouts, lambda x: x[:, order])
    outcomes = s.call("decode", s.policy, s.context, turned, s.replicated)
    _compare(
        s,
        {name: part[:, order] for name, part in parts.items()},
        _measured(s, turned, outcomes),
        "whatever its place in the group",
    )
    # All prompts in reverse order: a reward that compares prompts with each other does not change.
    batch = s.batch_of(s.rows[::-1].copy())
    replicated, context = (
        s.call("replicate", batch, s.group_size),
        s.call("encode", s.policy, batch),
    )
    turned = map_tensors(s.rollouts, _turned)
    found, _ = s.call(
        "reward", replicated, turned, s.call("decode", s.policy, context, turned, replicated)
    )
    _compare(
        s,
        {name: _turned(part) for name, part in parts.items()},
        found,
        "whatever the place of its prompt in the batch",
    )


def check_micro_batches_add_up_to_the_supervised_loss(s: Subject) -> None:
    """Check that the losses of micro-batches, each times its share, are the loss of the batch."""
    counts = s.call("supervised_counts", s.batch)
    if not isinstance(counts, Tensor) or counts.ndim != 1 or counts.dtype != torch.float64:
        got = f"{counts.dtype} {list(counts.shape)}" if isinstance(counts, Tensor) else repr(counts)
        s.fail(
            "supervised_counts",
            "return float64 [T]",
            got,
            remedy="count what each part is a mean over",
        )
    whole = _check_supervised(s, s.outcomes)
    if s.prompts < 2:
        return
    total, losses, counted = counts.clamp(min=1), [], torch.zeros_like(counts)
    for place in bounds(s.prompts, 2):
        batch, rollouts = (take_prompts(x, *place) for x in (s.replicated, s.rollouts))
        prompts = take_prompts(s.batch, *place)
        context = s.call("encode", s.policy, prompts)
        outcomes = s.call("decode", s.policy, context, rollouts, batch)
        of_part = s.call("supervised_counts", batch)
        counted += of_part
        losses.append(
            s.call("supervised_loss", s.policy, context, batch, outcomes, of_part / total)
        )
    if not torch.allclose(counted, counts):
        s.fail(
            "supervised_counts",
            f"add up over micro-batches to {counts.tolist()}",
            str(counted.tolist()),
            remedy="count what is in the batch that it is given",
        )
    summed = float(sum(float(loss.detach()) for loss in losses))
    if abs(summed - whole) > 10 * s.tolerance * max(1.0, abs(whole)):
        s.fail(
            "supervised_loss",
            f"add up over micro-batches to the loss of the batch, {whole:.5g}",
            f"{summed:.5g}",
            remedy="multiply each part by its share where shares is given",
        )


def check_every_component_can_learn(s: Subject) -> None:
    """Check that each parameter group gets a gradient from the samples or from the supervised loss."""
    scores = s.score(s.rollouts)
    terms = [scores.logprobs.sum(), scores.entropy.sum()]
    terms += [] if scores.values is None else [scores.values.sum()]
    terms.append(s.call("supervised_loss", s.policy, s.context, s.replicated, s.outcomes))
    whole = torch.stack([term.float() for term in terms]).sum()
    for name, group in s.call("parameter_groups", s.policy).items():
        found = torch.autograd.grad(whole, group, retain_graph=True, allow_unused=True)
        if not any(g is not None and bool((g != 0).any()) for g in found):
            s.fail(
                "parameter_groups",
                f"hold what a loss can teach in {name}",
                "a gradient of 0",
                remedy="freeze it with requires_grad_(False), or let a score or the supervised loss read it",
            )


def check_prompt_weights(s: Subject) -> None:
    """Check that prompt weights are finite, [P], or None."""
    weights = s.call("prompt_weights", s.replicated)
    if weights is not None and (
        list(weights.shape) != [s.prompts] or not bool((weights.isfinite() & (weights >= 0)).all())
    ):
        s.fail(
            "prompt_weights",
            f"return finite weights of shape [{s.prompts}] ([P]), at least 0, or None",
            f"shape {list(weights.shape)}",
            remedy="give one number per prompt",
        )


def check_parts_of_a_sample_earn_what_the_sample_earns(s: Subject) -> None:
    """Check ``subset_rewards``, if the task has it: all decisions of a sample get the sample's reward."""
    if "subset_rewards" not in vars(type(s.task)):
        return
    kept = torch.ones(1, s.rollouts.actions.shape[2], dtype=torch.bool, device=s.task.device)
    found = s.call(
        "subset_rewards",
        s.policy,
        s.call("detach", s.context),
        s.rollouts,
        s.replicated,
        kept=kept,
    )
    parts, weights = s.call("reward", s.replicated, s.rollouts, s.outcomes)
    total = combine_rewards(parts, weights).total
    if list(found.shape) != [*total.shape, 1] or not torch.allclose(
        found[..., 0].double(), total, atol=1e-3, rtol=1e-3, equal_nan=True
    ):
        s.fail(
            "subset_rewards",
            "return [P, G, M], for all decisions the reward of the sample",
            f"shape {list(found.shape)}",
            remedy="decode the kept decisions, and combine the components with their weights",
        )


def _turned(x: Tensor) -> Tensor:
    return x.flip(0)


def _measured(s: Subject, rollouts: Any, outcomes: Any) -> dict[str, Tensor]:
    if outcomes is None:
        s.fail(
            "decode",
            "return what the samples lead to",
            "None",
            remedy="return () where rewards read the samples alone",
        )
    found = s.call("reward", s.replicated, rollouts, outcomes)
    if not (
        isinstance(found, tuple) and len(found) == 2 and all(isinstance(x, Mapping) for x in found)
    ):
        s.fail(
            "reward",
            "return components and weights by name",
            type(found).__name__,
            remedy='return {"right": values}, {"right": 1.0}',
        )
    parts, weights = found
    if set(parts) != set(weights) or not parts:
        s.fail(
            "reward",
            f"weigh exactly its components ({', '.join(parts)})",
            ", ".join(weights) or "no weight",
            remedy="name each component once in both",
        )
    for name, part in parts.items():
        rule = f"return {name} as floating-point [{s.prompts}, {s.group_size}] ([P, G]) without a graph"
        if not isinstance(part, Tensor) or list(part.shape) != [s.prompts, s.group_size]:
            got = f"shape {list(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
            s.fail(
                "reward",
                rule,
                got,
                remedy="give one number per sample: reduce over decisions, not over samples",
            )
        if part.requires_grad or not part.is_floating_point():
            got = "a graph" if part.requires_grad else str(part.dtype)
            s.fail("reward", rule, got, remedy="use .detach() and .double()")
        if bool(part.isinf().any()):
            s.fail(
                "reward",
                f"return {name} finite, or NaN where a sample was not scored",
                "an infinite one",
                remedy="use NaN or a penalty",
            )
    return dict(parts)


def _compare(
    s: Subject, expected: Mapping[str, Tensor], found: Mapping[str, Tensor], whatever: str
) -> None:
    for name, part in expected.items():
        if name not in found or not torch.allclose(
            part.double(), found[name].double(), atol=1e-3, rtol=1e-3, equal_nan=True
        ):
            s.fail(
                "reward",
                f"give each sample its own {name}, {whatever}",
                "another value",
                remedy="rows are n = p * G + g, and batch fields are replicated to [P, G]",
            )


def _check_supervised(s: Subject, outcomes: Any) -> float:
    """Check that the supervised loss is a finite scalar with a gradient, and return it."""
    loss = s.call("supervised_loss", s.policy, s.context, s.replicated, outcomes)
    rule = "return a finite scalar with a graph"
    if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad:
        got = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) and loss.ndim else "no graph"
        got = got if isinstance(loss, Tensor) else type(loss).__name__
        s.fail(
            "supervised_loss",
            rule,
            got,
            remedy="return a mean that depends on the policy's weights",
        )
    if not bool(loss.isfinite()):
        s.fail(
            "supervised_loss",
            rule,
            str(float(loss.detach())),
            remedy="mask what has no target before the logarithm",
        )
    return float(loss.detach())
