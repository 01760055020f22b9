"""Make and move the reference policy: frozen, copied now and then, or a moving average of the trained policy."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grpo_pipeline.core.storage.weights import load_weights

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
    """Copy a module for use as the reference: evaluation mode, no gradients.

    The copy owns its buffers and every parameter that the original trains, so no optimiser of the original can move it. Frozen
    parameters are shared: the reference of a network with low-rank updates costs the memory of the updates alone.
    """
    frozen = {id(p): p for p in module.parameters() if not p.requires_grad}
    reference = copy.deepcopy(module, memo=frozen)
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
    reference = copy.deepcopy(module).requires_grad_(False).eval()
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
    differ; a bfloat16 reference rounds small steps of "ema" away. Frozen parameters that both share stay.
    Source: the hard and the soft update of TR-DPO, arXiv 2404.09656, with decay = 1 - alpha.

    Args:
        reference: changed in place; its mode and its flags stay as they are.
        policy: only read.
        rule: when and how.
        step: batches used so far (``TrainState.step`` after ``advance``); at 0 the two are still equal and nothing is done.

    Returns:
        Whether the reference was updated.

    Raises:
        ValueError: if names or shapes differ, or the two share memory that is trained; the reference is as before.
    """
    if rule.method == "frozen" or step == 0 or step % rule.every_steps:
        return False
    old, new = _tensors_of(reference), _tensors_of(policy)
    if found := _misfits(new, old):
        raise ValueError(
            f"the policy must fit its reference, got {_first(found)}; build the reference with frozen_copy"
        )
    shared = {
        name for name, p in policy.named_parameters() if p is old[name] and not p.requires_grad
    }
    old = {name: tensor for name, tensor in old.items() if name not in shared}
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
