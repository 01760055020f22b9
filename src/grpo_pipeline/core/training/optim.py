"""Build the optimiser and apply updates. No other module changes weights.

``apply_update`` is the update on one loss: ``clear_gradients``, ``accumulate``, ``step``. A batch that does not fit into memory
calls ``accumulate`` once per micro-batch, each loss divided by the denominators of the whole batch.
"""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from grpo_pipeline.core.storage.weights import load_weights
from grpo_pipeline.core.training.state import TrainState

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

    One fused kernel updates all parameters where they are floating-point on CPU or CUDA: several times faster for many small
    ones, and the same up to rounding as the loop over parameters.

    Args:
        groups: group name -> (parameters, learning rate).
        weight_decay: decoupled decay, per step and unit of learning rate.
        betas: decay rates of the two moments.

    Raises:
        ValueError: if a group has nothing to train, or a parameter is in two groups.
    """
    owner: dict[int, str] = {}
    built: list[dict[str, Any]] = []
    for name, (parameters, lr) in groups.items():
        trainable = [p for p in parameters if p.requires_grad]
        if not trainable:
            raise ValueError(
                f"parameter group '{name}' must hold a trainable parameter, got none; leave the frozen group out"
            )
        for parameter in trainable:
            if (first := owner.setdefault(id(parameter), name)) != name:
                raise ValueError(
                    f"parameter groups must be disjoint, got one parameter in '{first}' and '{name}'; keep one"
                )
        built.append({"params": trainable, "lr": lr, "name": name})
    held = [parameter for group in built for parameter in group["params"]]
    fused = (
        True
        if all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in held)
        else None
    )
    return torch.optim.AdamW(built, weight_decay=weight_decay, betas=betas, fused=fused)


def apply_update(
    state: TrainState,
    loss: Tensor,
    *,
    max_grad_norm: float | None,
    clip: ClipScope = "per_group",
    learning_rate_scale: float = 1.0,
) -> tuple[TrainState, dict[str, float]]:
    """Take one optimiser step on a scalar loss.

    Clears old gradients, back-propagates, checks that every gradient is finite, clips, steps, clears. ``per_group`` clips each
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
        ValueError: if the loss is no scalar, or does not depend on any trained parameter.
    """
    clear_gradients(state)
    accumulate(state, loss)
    return state, step(
        state, max_grad_norm=max_grad_norm, clip=clip, learning_rate_scale=learning_rate_scale
    )


def clear_gradients(state: TrainState) -> None:
    """Forget every gradient of the optimiser's parameters: the start of an update."""
    state.optimizer.zero_grad(set_to_none=True)


def accumulate(state: TrainState, loss: Tensor) -> None:
    """Add the gradient of a loss to what was accumulated since the last step; weights do not change.

    Args:
        state: its parameters' gradients are changed.
        loss: scalar with graph; of a micro-batch, its sum over the denominators of the whole batch and not its own mean.

    Raises:
        ValueError: if the loss is no scalar, or has no graph.
    """
    _check_loss(loss, state.step)
    torch.autograd.backward(loss)


def step(
    state: TrainState,
    *,
    max_grad_norm: float | None,
    clip: ClipScope = "per_group",
    learning_rate_scale: float = 1.0,
) -> dict[str, float]:
    """Take one optimiser step on the accumulated gradients, and clear them; arguments, metrics and errors of ``apply_update``."""
    optimizer = state.optimizer
    try:
        groups = parameter_groups(optimizer)
        gradients = {
            name: [p.grad for p in parameters if p.grad is not None]
            for name, parameters in groups.items()
        }
        if not any(gradients.values()):
            raise ValueError(
                f"the loss must depend on a trained parameter, got none at step {state.step}; find the detach"
            )
        # The norm is finite only if every gradient is; a parameter is looked for only where it is not.
        norms = _norms(gradients)
        total = math.hypot(*norms.values())
        if not math.isfinite(total):
            entries = (
                (n, p.grad) for n, p in state.policy.named_parameters() if p.grad is not None
            )
            culprit = next(
                (name for name, grad in entries if not bool(grad.isfinite().all())), None
            )
            what = f"gradient of parameter '{culprit}'" if culprit else "norm of the gradient"
            got = "a NaN or infinite entry" if culprit else str(total)
            raise NonFiniteGradientError(
                f"{what} must be finite, got {got} at step {state.step}; the weights are unchanged: "
                "lower the learning rate and resume"
            )
        for name, parameters in groups.items():
            norm = total if clip == "joint" else norms[name]
            if max_grad_norm is not None and norm > max_grad_norm:
                clip_grads_with_norm_(parameters, max_grad_norm, torch.tensor(norm))
        rates = _step(optimizer, learning_rate_scale)
    finally:
        clear_gradients(state)
    report = {"grad_norm/total": total, "lr": max(rates.values())}
    report |= {f"group_grad_norm/total/{name}": norm for name, norm in norms.items()}
    return report | {f"group_lr/{name}": rate for name, rate in rates.items()}


def advance(state: TrainState, *, epoch: int | None = None) -> TrainState:
    """Return the state with its batch counter moved on by one, and the epoch set where given."""
    return replace(state, step=state.step + 1, epoch=state.epoch if epoch is None else epoch)


def parameter_groups(optimizer: torch.optim.Optimizer) -> dict[str, list[nn.Parameter]]:
    """Return group name -> parameters; a group without a name is called by its number."""
    return {
        str(group.get("name", i)): list(group["params"])
        for i, group in enumerate(optimizer.param_groups)
    }


def _check_loss(loss: Tensor, step: int) -> None:
    if loss.ndim != 0:
        raise ValueError(
            f"the loss must be a scalar, got shape {list(loss.shape)} at step {step}; reduce it"
        )
    if not loss.requires_grad:
        raise ValueError(
            f"the loss must depend on a trained parameter, got none at step {step}: it has no graph; find the detach "
            "or the no_grad"
        )


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
    return {
        name: rate * scale for name, rate in zip(parameter_groups(optimizer), base, strict=True)
    }


def _norms(gradients: Mapping[str, list[Tensor]]) -> dict[str, float]:
    """Return the norm of each group; one transfer from the device for all of them."""
    filled = {name: get_total_norm(tensors) for name, tensors in gradients.items() if tensors}
    values = torch.stack(list(filled.values())).tolist() if filled else []
    return dict.fromkeys(gradients, 0.0) | dict(zip(filled, values, strict=True))


# The reference policy: frozen, copied now and then, or a moving average of the trained policy.

Module = TypeVar("Module", bound=nn.Module)
ReferenceMethod = Literal["frozen", "copy", "ema"]
METHODS = ("frozen", "copy", "ema")
SHOWN = 3  # misfits that an error names


@dataclass(frozen=True)
class ReferenceUpdate:
    """When and how the reference follows the policy.

    Attributes:
        method: "frozen" never; "copy" takes the policy's weights; "ema" moves towards them.
        every_steps: batches between two updates of the reference, at least 1.
        decay: of "ema", the share of the old reference that stays at each update, in [0, 1).
    """

    method: ReferenceMethod
    every_steps: int = 1
    decay: float = 0.99

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(
                f"reference method must be one of {', '.join(METHODS)}, got {self.method!r}; correct the parameter"
            )
        if self.every_steps < 1:
            raise ValueError(
                f"every_steps must be at least 1, got {self.every_steps}; use method frozen for no update"
            )
        if not 0 <= self.decay < 1:
            raise ValueError(
                f"decay must be at least 0 and below 1, got {self.decay}; use method frozen for no update"
            )


def frozen_copy(module: Module) -> Module:
    """Copy a module for use as the reference: own memory, evaluation mode, no gradients.

    The copy shares no parameter with the original, so no optimiser of the original can move it.
    """
    reference = copy.deepcopy(module)
    reference.requires_grad_(False)
    for parameter in reference.parameters():
        parameter.grad = None
    return reference.eval()


def load_reference(folder: Path, module: Module) -> Module:
    """Build the reference from a folder of weights (``core.storage.weights.save_weights``); ``module`` is not changed.

    Args:
        folder: holds ``model.safetensors`` and ``model.json``.
        module: of the architecture that the weights belong to; gives device and dtype.

    Returns:
        A frozen copy of ``module`` with the weights of the folder.

    Raises:
        FileNotFoundError: if nothing is there.
        CorruptFolderError: if a file is missing or damaged.
        ValueError: if names or shapes do not fit (names the first of them).
    """
    tensors = load_weights(folder).tensors
    reference = frozen_copy(module)
    if found := _misfits(tensors, reference.state_dict()):
        raise ValueError(
            f"reference weights {folder} must fit the policy, got {_first(found)}; build the policy with the configuration in "
            "model.json, or choose other weights"
        )
    reference.load_state_dict(dict(tensors))
    return reference


@torch.no_grad()
def update_reference(
    reference: nn.Module, policy: nn.Module, rule: ReferenceUpdate, step: int
) -> bool:
    """Move the reference towards the policy where the rule says so, in place.

        copy:  ref = policy
        ema:   ref = decay * ref + (1 - decay) * policy

    For every parameter and every floating-point buffer; other buffers (counters) are copied. Where both are equal the
    reference keeps its bits, so frozen weights do not drift and a constant -inf in a buffer stays. Devices and dtypes may
    differ; a bfloat16 reference rounds small steps of "ema" away.
    Source: the hard and the soft update of TR-DPO, arXiv 2404.09656, with decay = 1 - alpha.

    Args:
        reference: changed in place; its mode and its flags stay as they are.
        policy: only read.
        rule: when and how.
        step: batches used so far (``TrainState.step`` after ``advance``); at 0 the two are still equal and nothing is done.

    Returns:
        Whether the reference was updated.

    Raises:
        ValueError: if names or shapes differ, or the two share memory; the reference is as before.
    """
    if rule.method == "frozen" or step == 0 or step % rule.every_steps:
        return False
    old, new = _tensors_of(reference), _tensors_of(policy)
    if found := _misfits(new, old):
        raise ValueError(
            f"the policy must fit its reference, got {_first(found)}; build the reference with frozen_copy"
        )
    if found := _shared(old, new.values()):
        raise ValueError(
            f"the reference must own its memory, got {_first(found)} shared with the policy; use frozen_copy"
        )
    for name, target in old.items():
        source = new[name].to(target)
        if rule.method == "ema" and target.is_floating_point():
            # Equal entries stay to the bit, and -inf stays -inf.
            source = torch.where(
                target == source, target, torch.lerp(target, source, 1.0 - rule.decay)
            )
        target.copy_(source)
    return True


def check_not_optimised(optimizer: Optimizer, reference: nn.Module) -> None:
    """Make sure that no optimiser step can move the reference.

    Raises:
        ValueError: naming the reference's parameters that the optimiser holds or shares memory with, or that require a gradient.
    """
    parameters = dict(reference.named_parameters())
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if found := _shared(parameters, held):
        raise ValueError(
            f"the reference must not be optimised, got {_first(found)} in the optimiser; use frozen_copy"
        )
    if found := [f"'{name}'" for name, parameter in parameters.items() if parameter.requires_grad]:
        raise ValueError(
            f"the reference must not require gradients, got {_first(found)} that does; use frozen_copy"
        )


def _tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; each tied tensor once, so that it is not averaged twice."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _misfits(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Say in order of name what is missing, unknown or of another shape."""
    found = []
    for name in sorted(given.keys() | wanted.keys()):
        if name not in given:
            found.append(f"no '{name}'")
        elif name not in wanted:
            found.append(f"an unknown '{name}'")
        elif given[name].shape != wanted[name].shape:
            found.append(
                f"'{name}' of shape {list(given[name].shape)} instead of {list(wanted[name].shape)}"
            )
    return found


def _shared(named: Mapping[str, Tensor], others: Iterable[Tensor]) -> list[str]:
    """Return the names of tensors whose memory is also that of another tensor."""
    taken = {other.untyped_storage().data_ptr() for other in others if other.numel()}
    return [
        f"'{name}'"
        for name, tensor in named.items()
        if tensor.numel() and tensor.untyped_storage().data_ptr() in taken
    ]


def _first(found: list[str]) -> str:
    more = len(found) - SHOWN
    return ", ".join(found[:SHOWN]) + (f" and {more} more" if more > 0 else "")
