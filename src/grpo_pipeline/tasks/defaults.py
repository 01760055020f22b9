"""Defaults of ``BaseTask``: functions of the protocol alone, for methods that a task does not write itself."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from pydantic import ValidationError
from torch import Generator, Tensor

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.core.groups import map_tensors
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.weights import digest_of_tensors
from grpo_pipeline.core.types import Rewards, Rollouts
from grpo_pipeline.statistics.metric import Direction

# The plan of a task's reward audit: policies with their roles, weights of the reward's components, metrics beside them.

Role = Literal["start", "trivial", "ceiling"]


@dataclass(frozen=True)
class AuditPlan:
    """How to read the rows of ``Task.audit``.

    A row is one sample of one policy for one example: the columns ``policy``, ``sample`` (0, 1, ... within policy and example),
    ``reward`` (NaN where it was not scored), ``reward_<component>``, those below, and one column per metric (NaN where
    undefined).

    Attributes:
        example: column of the examples' names; the samples of one policy for one example are a group.
        cluster: column of the units that are resampled together.
        policies: name -> role, in the order of the report. ``start`` is where training begins; there is exactly one. A
            ``trivial`` policy needs no learning; the ``ceiling`` knows the answer.
        weights: part -> its weight in the reward; a part that is named here need not be in the rows.
        metrics: column -> which direction is good.
    """

    example: str
    cluster: str
    policies: Mapping[str, Role]
    weights: Mapping[str, float]
    metrics: Mapping[str, Direction]

    def __post_init__(self) -> None:
        """Raise ValueError unless exactly one policy is the start."""
        starts = [name for name, role in self.policies.items() if role == "start"]
        if len(starts) != 1:
            raise ValueError(
                f"exactly one audited policy must have the role start, got {starts}; name where training begins"
            )

    @property
    def start(self) -> str:
        """Name of the policy that training begins with."""
        return next(name for name, role in self.policies.items() if role == "start")


BATCH_PROMPTS = 64
ROLES: dict[str, Role] = {"start": "start", "constant": "trivial", "other_example": "trivial"}
REWARD_SECTIONS = ("reward", "rewards")


@torch.no_grad()
def mean_reward(
    task: Any, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
) -> dict[str, float]:
    """Return ``reward/mean`` and ``reward/<component>/mean`` of ``n_samples`` samples a row, with the same noise each time."""
    found: dict[str, list[Tensor]] = {}
    for number, batch in enumerate(batches(task, data, rows)):
        generator = step_generator(seed, number, stream=Stream.VALIDATION, device=task.device)
        _, rewards = sampled_rewards(task, policy, batch, n_samples=n_samples, generator=generator)
        for name, values in {
            "reward/mean": rewards.total,
            **{f"reward/{k}/mean": v for k, v in rewards.components.items()},
        }.items():
            found.setdefault(name, []).append(values.double().flatten().cpu())
    return {name: float(torch.cat(values).nanmean()) for name, values in found.items()}


@torch.no_grad()
def audit_start(
    task: Any, policy: Any, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
) -> pd.DataFrame:
    """Score the start's own samples, and two that need no learning, as ``AuditPlan`` wants them.

    ``constant`` gives every example of a batch one sample of the batch's first example; ``other_example`` gives each example
    one sample of the example beside it. Both are as likely in form as the start's own, and know nothing of the example.
    """
    frames, first = [], 0
    for number, batch in enumerate(batches(task, data, rows)):
        generator = step_generator(seed, number, stream=Stream.AUDIT, device=task.device)
        sampled, rewards = sampled_rewards(
            task, policy, batch, n_samples=n_samples, generator=generator
        )
        prompts = len(sampled.actions)
        beside = torch.arange(prompts, device=sampled.actions.device).roll(1)
        others = {"constant": torch.zeros_like(beside), "other_example": beside}
        measured = {"start": rewards}
        for name, taken in others.items():
            measured[name] = measure(
                task, policy, batch, map_tensors(sampled, partial(_first_sample_of, taken))
            )
        for name, found in measured.items():
            frames.append(audit_rows(found, rows[first : first + prompts]).assign(policy=name))
        first += prompts
    return pd.concat(frames, ignore_index=True)


def _first_sample_of(prompts: Tensor, samples: Tensor) -> Tensor:
    return samples[prompts, :1]


def audit_rows(rewards: Rewards, rows: np.ndarray) -> pd.DataFrame:
    """Return one row per sample with the reward and its parts; an example is named by its row number."""
    samples = rewards.total.shape[1]
    columns = {"reward": rewards.total} | {
        f"reward_{name}": component for name, component in rewards.components.items()
    }
    return pd.DataFrame(
        {"row": rows.repeat(samples), "sample": np.tile(np.arange(samples), len(rows))}
        | {name: value.flatten().cpu().numpy() for name, value in columns.items()}
    )


def plan_audit(weights: Mapping[str, float]) -> AuditPlan:
    """Return the policies of ``audit_start``; an example is its own cluster, and there are no metrics beside the reward."""
    return AuditPlan("row", "row", policies=ROLES, weights=weights, metrics={})


def tabulate_samples(batch: Any, rollouts: Rollouts) -> pd.DataFrame:
    """Return one row per sample: row number (or place, where a batch does not know it), actions, log-probability."""
    prompts, group_size, _ = rollouts.actions.shape
    rows = getattr(batch, "rows", None)
    known = rows.cpu().numpy() if isinstance(rows, Tensor) else np.arange(prompts)
    actions, is_valid = (
        rollouts.actions.flatten(0, 1).tolist(),
        rollouts.is_valid.flatten(0, 1).tolist(),
    )
    taken = [
        " ".join(str(a) for a, valid in zip(*pair, strict=True) if valid)
        for pair in zip(actions, is_valid, strict=True)
    ]
    return pd.DataFrame(
        {
            "row": known.repeat(group_size),
            "sample": np.tile(np.arange(group_size), prompts),
            "actions": taken,
            "logprob": (rollouts.logprobs * rollouts.is_valid).sum(-1).flatten().cpu().numpy(),
        }
    )


def batches(task: Any, data: Any, rows: np.ndarray) -> Iterator[Any]:
    """Yield the rows in batches that fit into memory, without augmentation."""
    for start in range(0, len(rows), BATCH_PROMPTS):
        yield task.make_batch(data, rows[start : start + BATCH_PROMPTS])


def sampled_rewards(
    task: Any, policy: Any, batch: Any, *, n_samples: int, generator: Generator
) -> tuple[Rollouts, Rewards]:
    """Draw ``n_samples`` samples of the policy for each prompt and measure them as training does."""
    context = task.encode(policy, batch)
    sampled = task.sample(
        policy, context, n_samples, temperature=1.0, proposal="policy", generator=generator
    )
    return sampled, measure(task, policy, batch, sampled)


def measure(task: Any, policy: Any, batch: Any, rollouts: Rollouts) -> Rewards:
    """Return the rewards of these samples as training measures them."""
    replicated = task.replicate(batch, rollouts.actions.shape[1])
    outcomes = task.decode(policy, task.encode(policy, batch), rollouts, replicated)
    return combine_rewards(*task.reward(replicated, rollouts, outcomes))


def sections_of(task: Any) -> dict[str, Any]:
    """Return the sections of parameters that a task holds: its fields that are pydantic models, by name."""
    return {
        f.name: section
        for f in fields(task)
        if hasattr(section := getattr(task, f.name), "model_dump")
    }


def fingerprint_of(task: Any, data: Any, *, draws: bool) -> dict[str, Any]:
    """Return sections, start and content of the data; of an arm that draws nothing without a section ``reward(s)``."""
    sections = {
        name: section
        for name, section in sections_of(task).items()
        if draws or name not in REWARD_SECTIONS
    }
    start = getattr(task, "start", None)
    return {name: decisive(section) for name, section in sections.items()} | {
        "start": None if start is None else digest_of_tensors(start.tensors),
        "examples": digest_of_data(data),
    }


def digest_of_data(data: Any) -> str:
    """Return ``data.digest`` where there is one, else the SHA-256 of all arrays, tensors, tables and texts that it holds."""
    known = getattr(data, "digest", None)
    if isinstance(known, str):
        return known
    digest = hashlib.sha256()
    for piece in _pieces(data):
        digest.update(piece)
    return digest.hexdigest()


def changed_sections(task: Any, sections: Mapping[str, Any], *, path: str) -> Any:
    """Return the task with these sections in its fields of the same names, or of those that ``section_fields`` says.

    Raises:
        ValueError: if there is no such field, or the values are not right; naming the path.
    """
    other, changed = getattr(task, "section_fields", {}), {}
    known = sections_of(task) if sections else {}
    for name, values in sections.items():
        place = other.get(name, name)
        if place not in known or name in other.values():
            named = {field: name for name, field in other.items()}
            there = ", ".join(named.get(field, field) for field in known)
            raise ValueError(
                f"{path} must hold sections among {there}, got {name}; an arm cannot have its own"
            )
        try:
            changed[place] = type(known[place]).model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join([path, name, *map(str, first["loc"])])
            raise ValueError(
                f"{where}: {first['msg']}, got {first['input']!r}; correct it"
            ) from error
    return replace(task, **changed) if changed else task


def begun_with(task: Any, start: Any) -> Any:
    """Return the task with these weights in its field ``start``, from which its ``build_policy`` reads them.

    Raises:
        TypeError: if it has no such field.
    """
    if (
        not is_dataclass(task)
        or isinstance(task, type)
        or "start" not in {f.name for f in fields(task)}
    ):
        raise TypeError(
            f"{type(task).__name__} must have a field start to begin with trained weights, got none; add one"
        )
    return replace(task, start=start)


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield the content of a tree of dataclasses, mappings and sequences, with the names and shapes that tell it apart."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, pd.DataFrame):
        yield value.to_json(orient="split", double_precision=15).encode()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes()
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield f"{f.name}:".encode()
            yield from _pieces(getattr(value, f.name))
    elif isinstance(value, Mapping):
        for name in value:
            yield f"{name}:".encode()
            yield from _pieces(value[name])
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _pieces(entry)
    else:
        yield f"{value!r};".encode()
