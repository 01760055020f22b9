"""Copy the state of a training into a checkpoint, and put the state of a checkpoint back into a training."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from grpo_pipeline.core.agreement import differences, summary
from grpo_pipeline.core.rng import capture_rng, restore_rng
from grpo_pipeline.core.storage.checkpoint import DAMAGED, Checkpoint, CheckpointError
from grpo_pipeline.core.training.state import TrainState


def snapshot(
    state: TrainState,
    *,
    progress: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    code: Mapping[str, str] | None = None,
    frozen_reference: str | None = None,
    extra: Mapping[str, str] | None = None,
    generators: Mapping[str, torch.Generator] | None = None,
    frames: Mapping[str, Tensor] | None = None,
    best: Mapping[str, Tensor] | None = None,
) -> Checkpoint:
    """Copy the state as it is now; later training does not change the copy.

    Args:
        state: the state to copy.
        progress: JSON values added to step, epoch and seed, such as the position in the data order.
        parameters: nested JSON values that the run must agree on to go on.
        code: name -> version.
        frozen_reference: digest of a reference that never moves, in the place of its tensors.
        extra: free text by name.
        generators: named generators whose streams go on across steps.
        frames: what an animation shows, "<step>/<name>" -> tensor; they are not copied.
        best: tensors of the policy at its best validation; they are not copied.

    Raises:
        CheckpointError: if a coefficient is not finite.
    """
    for name, value in state.coefficients.items():
        if not math.isfinite(value):
            raise CheckpointError(
                f"coefficient '{name}' must be finite, got {value} at step {state.step}; bound it and resume from the last "
                "checkpoint"
            )
    is_stored = state.reference is not None and frozen_reference is None
    counters = {"step": state.step, "epoch": state.epoch, "seed": state.generator_seed}
    return Checkpoint(
        policy=_copy_tensors(state.policy.state_dict()),
        optimizer=_copy_optimizer(state),
        reference=_copy_tensors(state.reference.state_dict())
        if state.reference is not None and is_stored
        else None,
        rng=capture_rng(generators),
        progress={**counters, **(progress or {})},
        parameters=dict(parameters or {}),
        extra=dict(extra or {}),
        replay=None if state.replay is None else state.replay.state(),
        coefficients=dict(state.coefficients),
        frozen_reference=None if state.reference is None else frozen_reference,
        code=dict(code or {}),
        frames=dict(frames or {}),
        best=dict(best or {}),
    )


def restore(
    state: TrainState,
    checkpoint: Checkpoint,
    *,
    parameters: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    frozen_reference: str | None = None,
    generators: Mapping[str, torch.Generator] | None = None,
) -> TrainState:
    """Put a checkpoint into freshly built modules and the replay buffer, in place, exactly; also sets the global random streams.

    Args:
        state: built with the same configuration.
        checkpoint: what to restore; it stays independent of later training.
        parameters: the present parameters, as they were given to ``snapshot``; None skips the comparison.
        names: first key of the parameters -> what an error calls it.
        frozen_reference: digest of the present reference, if it never moves.
        generators: the named generators that were given to ``snapshot``.

    Returns:
        The state with the checkpoint's counters and coefficients.

    Raises:
        CheckpointError: if the checkpoint was written under other parameters or for another model or optimiser.
    """
    where = f"the checkpoint {checkpoint.folder}" if checkpoint.folder else "the checkpoint"
    if parameters is not None and (
        found := differences(parameters, checkpoint.parameters, names=names)
    ):
        raise CheckpointError(
            f"{where} must be of a run with these parameters, got {summary(found)}; go on with the checkpoint's values, or "
            "remove its folder to train this part anew"
        )
    try:
        _check_fit(state, checkpoint, frozen_reference)
        optimizer_state = _optimizer_state_dict(state, checkpoint.optimizer)
        _load_module(state.policy, checkpoint.policy, "policy")
        if state.reference is not None and checkpoint.reference is not None:
            _load_module(state.reference, checkpoint.reference, "reference")
        if state.replay is not None and checkpoint.replay is not None:
            try:
                state.replay.load(checkpoint.replay)
            except ValueError as error:
                raise CheckpointError(
                    f"the checkpoint must fit the replay buffer, got: {error}"
                ) from error
        state.optimizer.load_state_dict(optimizer_state)
        restore_rng(checkpoint.rng, generators)
        p = checkpoint.progress
        coefficients = {**state.coefficients, **checkpoint.coefficients}
        return replace(
            state,
            step=p["step"],
            epoch=p["epoch"],
            generator_seed=p["seed"],
            coefficients=coefficients,
        )
    except CheckpointError:
        raise
    # Whatever an edited file makes of the libraries that read it.
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:
        said = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{where} must be as a run wrote it, got {type(error).__name__}: {said}; {DAMAGED}"
        ) from error


def _check_fit(state: TrainState, checkpoint: Checkpoint, frozen_reference: str | None) -> None:
    step, total = checkpoint.progress["step"], state.total_steps
    if "total_steps" in checkpoint.progress and step > total:
        raise CheckpointError(
            f"a run must be at least as long as its checkpoint, got {total} steps after {step}; give it more epochs or max_steps"
        )
    if frozen_reference != checkpoint.frozen_reference and None not in (
        frozen_reference,
        checkpoint.frozen_reference,
    ):
        raise CheckpointError(
            "the reference policy must be the one that training began with, got other weights; give the start, or the folder in "
            "reference.path, its old content, and use the same torch"
        )
    references = (
        checkpoint.reference if checkpoint.frozen_reference is None else checkpoint.frozen_reference
    )
    parts = {
        "reference policy": (references, state.reference),
        "replay buffer": (checkpoint.replay, state.replay),
    }
    for name, (stored, present) in parts.items():
        if (stored is None) != (present is None):
            has, runs = ("none" if part is None else "one" for part in (stored, present))
            raise CheckpointError(
                f"the checkpoint's {name} must be the run's, got {has} for {runs}; use the same parameters"
            )
    if missing := sorted(set(state.coefficients) - set(checkpoint.coefficients)):
        raise CheckpointError(
            f"the checkpoint must hold the run's coefficients, got none for {missing}; use the same parameters"
        )


def _copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _parameter_names(state: TrainState) -> list[str]:
    """Return the name of each parameter of the optimiser, in the order of its groups."""
    names = {id(p): name for name, p in state.policy.named_parameters()}
    order = [p for group in state.optimizer.param_groups for p in group["params"]]
    return [names.get(id(p), f"#{i}") for i, p in enumerate(order)]


def _copy_optimizer(state: TrainState) -> dict[str, Any]:
    names = _parameter_names(state)
    plain = state.optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, float]] = {}
    for index, entries in plain["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{names[index]}:{key}"] = value.detach().to("cpu", copy=True)
            else:
                scalars.setdefault(names[index], {})[key] = value
    groups = [
        {**group, "params": [names[i] for i in group["params"]]} for group in plain["param_groups"]
    ]
    return {"tensors": tensors, "scalars": scalars, "groups": groups}


def _optimizer_state_dict(state: TrainState, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Rebuild what ``Optimizer.load_state_dict`` takes, with tensors of its own."""
    names = _parameter_names(state)
    stored_names = [name for group in stored["groups"] for name in group["params"]]
    if names != stored_names:
        odd = sorted(set(names) ^ set(stored_names))[:3]
        raise CheckpointError(
            f"the checkpoint must hold the optimiser's parameters, got a difference in {odd}; use the same model"
        )
    index = {name: i for i, name in enumerate(names)}
    entries: dict[int, dict[str, Any]] = {
        index[name]: dict(values) for name, values in stored["scalars"].items()
    }
    shapes = [p.shape for group in state.optimizer.param_groups for p in group["params"]]
    for name, tensor in stored["tensors"].items():
        parameter, key = name.rsplit(":", 1)
        _check_tensor(f"the optimiser's {name}", tensor, is_weight=True)
        if tensor.ndim and tensor.shape != shapes[index[parameter]]:
            raise CheckpointError(
                f"the checkpoint's optimiser's {name} must have the shape {list(shapes[index[parameter]])} of its parameter, got "
                f"{list(tensor.shape)}; {DAMAGED}"
            )
        entries.setdefault(index[parameter], {})[key] = tensor.clone()
    groups = []
    for group, present in zip(stored["groups"], state.optimizer.param_groups, strict=True):
        if odd := sorted(group.keys() ^ present.keys()):
            raise CheckpointError(
                f"the checkpoint's optimiser must have the settings of the run's, got a difference in {odd}; {DAMAGED}"
            )
    # JSON has lists for the optimiser's tuples, and names for its numbers.
    for group in stored["groups"]:
        settings = {
            key: tuple(value) if isinstance(value, list) else value for key, value in group.items()
        }
        groups.append({**settings, "params": [index[name] for name in group["params"]]})
    return {"state": entries, "param_groups": groups}


def _load_module(module: nn.Module, tensors: Mapping[str, Tensor], label: str) -> None:
    weights = {name for name, _ in module.named_parameters()}
    for name, present in module.state_dict().items():
        if name not in tensors:
            continue  # told with all that is missing, below
        stored = tensors[name]
        _check_tensor(f"{label}'s {name}", stored, is_weight=name in weights)
        if stored.dtype != present.dtype:
            raise CheckpointError(
                f"the checkpoint's {label}'s {name} must be of the kind {present.dtype}, got {stored.dtype}; use the same "
                f"parameters, or {DAMAGED}"
            )
    try:
        module.load_state_dict(dict(tensors), strict=True)
    except RuntimeError as error:
        said = " ".join(str(error).split())
        raise CheckpointError(
            f"the checkpoint must fit the {label}, got: {said}; use the same parameters"
        ) from error


def _check_tensor(name: str, tensor: Tensor, *, is_weight: bool) -> None:
    """Refuse weights and moments that are no numbers; a buffer may hold an infinity."""
    if is_weight and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise CheckpointError(
            f"the checkpoint's {name} must hold finite numbers, got {_first_odd(tensor)}; {DAMAGED}"
        )


def _first_odd(tensor: Tensor) -> str:
    return str(float(tensor[~tensor.isfinite()].flatten()[0]))
