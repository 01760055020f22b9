"""Check a task's policy: its weights by seed, parameter groups, and descriptions."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from grpo_pipeline.tasks.task_fields import sections_of
from grpo_pipeline.testing.subject import Subject, tensors_in


def check_name(s: Subject) -> None:
    """Check that the task has a device, and a name that is valid in catalogue and parameters."""
    name, device = getattr(s.task, "name", None), getattr(s.task, "device", None)
    if not (isinstance(name, str) and name.isidentifier() and name == name.lower()):
        s.fail(
            "name",
            "be small letters, digits and _",
            repr(name),
            remedy="it is the prefix of the task's parameters and results",
        )
    if not isinstance(device, torch.device):
        s.fail(
            "device",
            "be a torch.device",
            repr(device),
            remedy='write device: torch.device = torch.device("cpu")',
        )


def check_weights_follow_from_the_seed(s: Subject) -> None:
    """Check that a seed gives the same weights each time, and another seed others, unless weights are read from a file."""
    one, again, other = (_weights(s, seed) for seed in (3, 3, 4))
    changed = [name for name in one if not torch.equal(one[name], again[name])]
    if changed or one.keys() != again.keys():
        s.fail(
            "build_policy",
            "give the same weights for the same seed",
            f"others in {changed[0] if changed else 'another network'}",
            remedy="make the network inside grpo_pipeline.core.rng.drawn_on_the_cpu(seed)",
        )
    if not _reads_weights(s.task) and all(torch.equal(one[name], other[name]) for name in one):
        s.fail(
            "build_policy",
            "give other weights for another seed",
            "the same for seeds 3 and 4",
            remedy="seed with its argument; weights that are always the same belong in a field start",
        )
    places = {p.device.type for p in s.policy.parameters()}
    if places != {s.task.device.type}:
        s.fail(
            "build_policy",
            f"put the policy on {s.task.device}",
            ", ".join(sorted(places)) or "no parameter",
            remedy="return policy.to(self.device)",
        )


def check_every_parameter_is_in_one_group(s: Subject) -> None:
    """Check that each trainable parameter is in exactly one group, under a valid name of a learning rate."""
    groups = s.call("parameter_groups", s.policy)
    remedy = "return {component: [its parameters that require a gradient]}"
    if not isinstance(groups, Mapping) or not all(
        isinstance(p, nn.Parameter) for group in groups.values() for p in group
    ):
        s.fail(
            "parameter_groups",
            "return lists of parameters by component",
            type(groups).__name__,
            remedy=remedy,
        )
    names = {id(p): name for name, p in s.policy.named_parameters() if p.requires_grad}
    found = [id(p) for group in groups.values() for p in group]
    if not names:
        s.fail(
            "build_policy",
            "have a parameter that learns",
            "none",
            remedy="let one require a gradient",
        )
    rule = "hold every trainable parameter exactly once"
    for key, name in names.items():
        if (n := found.count(key)) != 1:
            got = f"{name} {'twice' if n > 1 else 'in no group'}"
            s.fail("parameter_groups", rule, got, remedy=remedy)
    if set(found) - names.keys():
        s.fail("parameter_groups", rule, "one that is not trained", remedy=remedy)
    empty = [name for name, group in groups.items() if not group]
    if empty:
        s.fail(
            "parameter_groups",
            "hold groups with parameters",
            f"{empty[0]} without any",
            remedy=remedy,
        )
    unknown = sorted(set(groups) - set(s.task.components)) if s.task.components else []
    if unknown:
        s.fail(
            "parameter_groups",
            f"be named as components ({', '.join(s.task.components)})",
            unknown[0],
            remedy="add it to components, or rename the group",
        )


def check_descriptions_are_plain(s: Subject) -> None:
    """Check that describe and fingerprint are JSON, and the same each time."""

    def said(method: str) -> Any:
        if method == "describe":
            return s.call(method, s.policy)
        return [s.call(method, s.data, draws=draws) for draws in (True, False)]

    for method in ("describe", "fingerprint"):
        one, again = said(method), said(method)
        try:
            texts = [json.dumps(found, allow_nan=False, sort_keys=True) for found in (one, again)]
        except (TypeError, ValueError) as error:
            s.fail(
                method,
                "return what JSON can hold",
                str(error),
                remedy="return texts, finite numbers, lists and dictionaries",
            )
        if texts[0] != texts[1]:
            s.fail(
                method,
                "return the same each time",
                "something else the second time",
                remedy="leave out addresses, times and random numbers, and sort sets",
            )


def _weights(s: Subject, seed: int) -> dict[str, Tensor]:
    policy = s.call("build_policy", seed)
    return {
        name: tensor.detach().clone() for name, tensor in tensors_in(policy.state_dict(), "policy")
    }


def _reads_weights(task: Any) -> bool:
    """Check whether a task may begin with given weights: it has a start, or its sections name a file or folder."""
    if getattr(task, "start", None) is not None:
        return True
    try:
        sections = sections_of(task)
    except TypeError:  # not a dataclass
        return False
    texts = [text for section in sections.values() for text in _texts(section)]
    return any(text and Path(text).exists() for text in texts)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _texts(entry)
