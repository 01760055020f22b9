"""Build the optimiser and make the update: ``apply_update`` is the one place where weights change."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from grpo_pipeline.core.types import TrainState

ClipScope = Literal["joint", "per_group"]


class NonFiniteGradientError(ArithmeticError):
    """A gradient is NaN or infinite; the weights and the optimiser have not been touched."""


def build_optimizer(
    groups: Mapping[str, tuple[Sequence[nn.Parameter], float]],
    *,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.AdamW:
    """Build AdamW with one named parameter group per entry; frozen parameters are left out.

    Args:
        groups: group name -> (parameters, learning rate).
        weight_decay: decoupled decay, per step and unit of learning rate.
        betas: decay rates of the two moments.

    Raises:
        ValueError: if a group has nothing to train, or a parameter is in two groups.
    """
    owner: dict[int, str] = {}
    built = []
    for name, (parameters, lr) in groups.items():
        trainable = [p for p in parameters if p.requires_grad]
        if not trainable:
            raise ValueError(f"parameter group '{name}' must hold a trainable parameter, got none; leave the frozen group out")
        for parameter in trainable:
            if (first := owner.setdefault(id(parameter), name)) != name:
                raise ValueError(f"parameter groups must be disjoint, got one parameter in '{first}' and '{name}'; keep one")
        built.append({"params": trainable, "lr": lr, "name": name})
    return torch.optim.AdamW(built, weight_decay=weight_decay, betas=betas)


def apply_update(
    state: TrainState,
    loss: Tensor,
    *,
    max_grad_norm: float | None,
    clip: ClipScope = "per_group",
    learning_rate_scale: float = 1.0,
) -> tuple[TrainState, dict[str, float]]:
    """Take one optimiser step on a scalar loss.

    Clears old gradients, back-propagates, checks that every gradient is finite, clips, steps. ``per_group`` clips each
    parameter group to ``max_grad_norm`` by itself, so that a large supervised gradient in one group cannot scale the RL
    gradient of another down; ``joint`` clips the norm over all groups.

    Does not move ``state.step``, which counts batches and not update epochs: see ``advance``.

    Args:
        state: its policy and optimiser are changed in place.
        loss: scalar with graph.
        max_grad_norm: largest norm, or None for no clipping.
        clip: scope of the norm.
        learning_rate_scale: factor on every group's learning rate for this step alone; the optimiser keeps its base rates.

    Returns:
        The same state, and before clipping ``grad_norm/total`` and ``group_grad_norm/total/<group>``; ``group_lr/<group>``,
        the rate of this step, and ``lr``, the largest of them.

    Raises:
        NonFiniteGradientError: naming the parameter and the step; weights, optimiser state and buffers are as before.
        ValueError: if the loss does not depend on any trained parameter.
    """
    optimizer = state.optimizer
    optimizer.zero_grad(set_to_none=True)
    if loss.requires_grad:
        torch.autograd.backward(loss)
    gradients = _group_gradients(optimizer)
    if not any(gradients.values()):
        raise ValueError(f"the loss must depend on a trained parameter, got none at step {state.step}; find the detach")
    norms = _norms(gradients)
    total = math.hypot(*norms.values())
    if not math.isfinite(total):
        message = _describe_non_finite(state, total)
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteGradientError(message)
    if max_grad_norm is not None:
        _clip(optimizer, norms, total, max_grad_norm=max_grad_norm, scope=clip)
    rates = _step(optimizer, learning_rate_scale)
    report = {"grad_norm/total": total, "lr": max(rates.values())}
    report |= {f"group_grad_norm/total/{name}": norm for name, norm in norms.items()}
    return state, report | {f"group_lr/{name}": rate for name, rate in rates.items()}


def advance(state: TrainState, *, epoch: int | None = None) -> TrainState:
    """Return the state with its batch counter moved on by one, and the epoch set where given."""
    return replace(state, step=state.step + 1, epoch=state.epoch if epoch is None else epoch)


def parameter_groups(optimizer: torch.optim.Optimizer) -> dict[str, list[nn.Parameter]]:
    """Return group name -> parameters; a group without a name is called by its number."""
    return {str(group.get("name", i)): list(group["params"]) for i, group in enumerate(optimizer.param_groups)}


def _step(optimizer: torch.optim.Optimizer, scale: float) -> dict[str, float]:
    """Step with scaled learning rates and return them by group; the base rates come back even if the step fails."""
    base = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, base, strict=True):
        group["lr"] = rate * scale
    try:
        optimizer.step()
    finally:
        for group, rate in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = rate
    return {name: rate * scale for name, rate in zip(parameter_groups(optimizer), base, strict=True)}


def _group_gradients(optimizer: torch.optim.Optimizer) -> dict[str, list[Tensor]]:
    groups = parameter_groups(optimizer)
    return {name: [p.grad for p in parameters if p.grad is not None] for name, parameters in groups.items()}


def _norms(gradients: Mapping[str, list[Tensor]]) -> dict[str, float]:
    """Return the norm of each group; one transfer from the device for all of them."""
    filled = {name: get_total_norm(tensors) for name, tensors in gradients.items() if tensors}
    values = torch.stack(list(filled.values())).tolist() if filled else []
    return dict.fromkeys(gradients, 0.0) | dict(zip(filled, values, strict=True))


def _clip(
    optimizer: torch.optim.Optimizer, norms: Mapping[str, float], total: float, *, max_grad_norm: float, scope: ClipScope
) -> None:
    for name, parameters in parameter_groups(optimizer).items():
        norm = total if scope == "joint" else norms[name]
        if norm > max_grad_norm:
            clip_grads_with_norm_(parameters, max_grad_norm, torch.tensor(norm))


def _describe_non_finite(state: TrainState, total: float) -> str:
    named = ((name, p.grad) for name, p in state.policy.named_parameters() if p.grad is not None)
    culprit = next((name for name, grad in named if not bool(grad.isfinite().all())), None)
    what = f"gradient of parameter '{culprit}'" if culprit else "norm of the gradient"
    got = "a NaN or infinite entry" if culprit else str(total)
    return f"{what} must be finite, got {got} at step {state.step}; the weights are unchanged: lower the learning rate and resume"
