"""Check ``Task.sample``: shapes, generators, and the mask of decisions that were drawn."""

from dataclasses import replace
from math import log
from typing import Any

import torch
from torch import Tensor

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.testing.subject import Subject, first_difference

MANY = 16
# A run of decisions less likely than this counts as filled in, not drawn.
CHANCE = log(1e-6)


def check_samples_have_their_shapes(s: Subject) -> None:
    """Check actions, log-probabilities and mask of samples: types, [P, G, L], device, no graph."""
    _check_rollouts(s, s.rollouts, length=None)


def check_nothing_is_drawn_where_nothing_is_asked_for(s: Subject) -> None:
    """Check that the proposal ``none`` gives samples without decisions, [P, G, 0]."""
    _check_rollouts(s, s.draw(proposal="none"), length=0)


def check_samples_follow_from_the_generator(s: Subject) -> None:
    """Check that only a generator's seed decides the draws; other seeds and prompts draw different samples."""
    one, again, other = (s.draw(seed=seed, group_size=MANY) for seed in (0, 0, 1))
    remedy = "pass generator= to every draw, and draw for all prompts and samples at once"
    if where := first_difference(one, again, "rollouts"):
        s.fail(
            "sample",
            "draw the same from a generator of the same seed",
            f"another {where}",
            remedy="pass generator= to every draw: what a global stream decides cannot be resumed",
        )
    varies = bool((one.actions != one.actions[:, :1]).any()) if one.actions.shape[2] else False
    if first_difference(one, other, "rollouts") is None:
        s.fail(
            "sample",
            "draw others from another generator",
            "the same for seeds 0 and 1",
            remedy=remedy,
        )
    same = all(torch.equal(entry, one.actions[0]) for entry in one.actions)
    if varies and s.prompts > 1 and same:
        s.fail(
            "sample",
            "draw for each prompt apart",
            f"the same {MANY} samples for {s.prompts} prompts",
            remedy=remedy,
        )


def check_nothing_counts_after_the_end(s: Subject) -> None:
    """Check that the filling of a sample after its stop is not marked valid: it was not drawn, and dilutes every mean.

    From outside, a stop is an action at different places of the samples, after which all samples hold the same action. Decisions
    after it count as filling if they have log-probability 0 for any action, or could hardly have been drawn so often by chance.
    """
    rollouts = s.draw(group_size=MANY)
    actions, is_valid = rollouts.actions, rollouts.is_valid
    for action in actions.unique().tolist():
        is_stop = actions == action
        after = (is_stop.cumsum(-1) - is_stop.int()) > 0  # [P, G, L]: behind the first one
        places = is_stop.int().argmax(-1)[is_stop.any(-1)]
        is_end = int(after.sum(-1).max()) > 1 and len(places.unique()) > 1
        if not is_end or len(actions[after].unique()) > 1:
            continue
        counted = after & is_valid
        if bool(counted.any()) and (
            _cannot_be_drawn(rollouts, counted) or _is_whatever(s, rollouts, counted)
        ):
            s.fail(
                "sample",
                "set is_valid to False after a sample's end",
                f"True for {int(counted.sum())} decisions behind the stop {action}",
                remedy="the stop itself is the last valid decision; what comes after it has log-probability 0",
            )


def _check_rollouts(s: Subject, rollouts: Any, *, length: int | None) -> None:
    if not isinstance(rollouts, Rollouts):
        s.fail(
            "sample",
            "return Rollouts",
            type(rollouts).__name__,
            remedy="return grpo_pipeline.core.types.Rollouts(actions, logprobs, is_valid)",
        )
    lead = [s.prompts, s.group_size]
    for name, kind, is_right in (
        ("actions", "int64", rollouts.actions.dtype == torch.int64),
        ("logprobs", "floating-point", rollouts.logprobs.is_floating_point()),
        ("is_valid", "bool", rollouts.is_valid.dtype == torch.bool),
    ):
        found = getattr(rollouts, name)
        shape = list(found.shape)
        fits = shape[:2] == lead and len(shape) == 3 and shape == list(rollouts.actions.shape)
        wanted = "L" if length is None else length
        if not (is_right and fits) or (length is not None and shape[2] != length):
            s.fail(
                "sample",
                f"return {kind} {name} of shape [{lead[0]}, {lead[1]}, {wanted}] ([P, G, L])",
                f"{str(found.dtype).removeprefix('torch.')} {shape}",
                remedy="one entry per prompt, sample and decision; proposal none has L = 0",
            )
        if found.device.type != s.task.device.type:
            s.fail(
                "sample",
                f"return {name} on {s.task.device}",
                str(found.device),
                remedy="use self.device",
            )
        if found.requires_grad:
            s.fail(
                "sample",
                "draw without a graph",
                f"{name} that require a gradient",
                remedy="decorate it with @torch.no_grad()",
            )
    if length == 0:
        return
    if not rollouts.actions.shape[2] or not bool(rollouts.is_valid.any(-1).all()):
        s.fail(
            "sample",
            "take at least one decision in every sample",
            "one without",
            remedy="a stop is a decision, too: mark it valid",
        )
    valid, padded = rollouts.logprobs[rollouts.is_valid], rollouts.logprobs[~rollouts.is_valid]
    if not bool((valid.isfinite() & (valid <= 1e-5)).all()):
        worst = valid[~(valid.isfinite() & (valid <= 1e-5))][0]
        s.fail(
            "sample",
            "return log-probabilities, finite and at most 0",
            f"{float(worst):g}",
            remedy="take log_softmax of the logits and gather the actions that were drawn",
        )
    if bool((padded != 0).any()):
        worst = padded[padded != 0][0]
        s.fail(
            "sample",
            "return the log-probability 0 where is_valid is False",
            f"{float(worst):g}",
            remedy="use logprobs.masked_fill(~is_valid, 0.0)",
        )


def _cannot_be_drawn(rollouts: Rollouts, counted: Tensor) -> bool:
    return float(rollouts.logprobs[counted].double().sum()) < CHANCE


def _is_whatever(s: Subject, rollouts: Rollouts, counted: Tensor) -> bool:
    """Check whether the sampler's log-probability 0 is no decision's: the score differs, or is equal for other actions.

    A decision without a choice has log-probability 0 in the score, and -inf for the others.
    """
    if bool((rollouts.logprobs[counted] != 0).any()):
        return False
    others = torch.unique(rollouts.actions)
    others = others[others != rollouts.actions[counted][0]]
    changed = replace(rollouts, actions=rollouts.actions.masked_fill(counted, int(others[0])))
    own, other = (s.score(each).logprobs.detach()[counted] for each in (rollouts, changed))
    return bool((own != 0).any()) or bool((other == 0).all())
