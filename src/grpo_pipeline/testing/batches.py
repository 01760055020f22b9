"""Check the inputs of a policy: rows of the splits, batches, their replication, and the context."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_pipeline.core.groups import replicate
from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.tasks.task_fingerprint import digest_of_data
from grpo_pipeline.testing.subject import Subject, first_difference, tensors_in

SPLITS = ("train", "val", "test")
PER_PROMPT = (
    "give each prompt its entry along the first axis (PerPrompt for what is no tensor), "
    "and keep what all prompts share in the task"
)


def check_splits_are_apart(s: Subject) -> None:
    """Check that the splits are whole numbers, not empty, the same each time, and hold no row twice."""
    s.call("check_data", s.data)
    owner: dict[int, str] = {}
    for split in SPLITS:
        rows, again = (s.call("rows", s.data, split) for _ in range(2))
        if not isinstance(rows, np.ndarray) or rows.ndim != 1 or rows.dtype.kind not in "iu":
            got = (
                f"{rows.dtype} {list(rows.shape)}"
                if isinstance(rows, np.ndarray)
                else type(rows).__name__
            )
            s.fail(
                "rows",
                "return row numbers, int64 [n]",
                got,
                remedy="use np.flatnonzero of the split",
            )
        if not len(rows):
            s.fail(
                "rows",
                f"find examples of {split}",
                "none",
                remedy="divide the data into train, val and test",
            )
        if not np.array_equal(rows, again):
            s.fail(
                "rows",
                f"return the same rows of {split} each time",
                "others",
                remedy="draw nothing here",
            )
        for row in rows.tolist():
            if row in owner:
                both = split if owner[row] == split else f"{owner[row]} and {split}"
                s.fail(
                    "rows",
                    "put each row into one split once",
                    f"row {row} in {both}",
                    remedy="a row that is trained on must not be tested on",
                )
            owner[row] = split


def check_a_batch_has_the_prompts_first(s: Subject) -> None:
    """Check that batch and context can be cut into micro-batches: each entry belongs to a single prompt."""
    for rows in (s.rows, s.rows[: max(len(s.rows) - 1, 1)]):
        batch = s.batch_of(rows)
        _check_first_axis(s, "make_batch", "batch", batch, len(rows))
        context = s.call("encode", s.policy, batch)
        if context is None:
            s.fail(
                "encode",
                "return a context",
                "None",
                remedy="return the batch where nothing is encoded: a context is cut, detached and joined",
            )
        _check_first_axis(s, "encode", "context", context, len(rows))
    places = {tensor.device.type for _, tensor in tensors_in(s.batch, "batch")}
    if places - {s.task.device.type}:
        s.fail(
            "make_batch",
            f"lie on {s.task.device}",
            ", ".join(sorted(places)),
            remedy="use .to(self.device)",
        )
    if not any(True for _ in tensors_in(s.batch, "batch")):
        s.fail(
            "make_batch",
            "hold a tensor of the prompts",
            "none",
            remedy="add the row numbers, rows: Tensor [P], from which prompts are counted",
        )


def check_a_batch_follows_from_its_arguments(s: Subject) -> None:
    """Check that a batch depends on data, rows and generator alone, and leaves the data unchanged."""
    before, rows = digest_of_data(s.data), s.rows
    for seed in (None, 5):
        one = s.batch_of(rows, seed=seed)
        s.batch_of(rows[::-1].copy(), seed=None if seed is None else 6)
        where = first_difference(one, s.batch_of(rows, seed=seed), "batch")
        if where:
            s.fail(
                "make_batch",
                "return the same for the same rows and the same generator",
                f"another {where} the second time",
                remedy="draw from the generator alone, and keep no count of the calls",
            )
    if digest_of_data(s.data) != before:
        s.fail("make_batch", "leave the data as they are", "others", remedy="copy what is changed")


def check_targets_are_repeated_for_their_own_samples(s: Subject) -> None:
    """Check that replicate repeats each prompt for its G samples, [P, ...] -> [P, G, ...]."""
    grouped = dict(tensors_in(s.replicated, "batch"))
    for path, before in tensors_in(s.batch, "batch"):
        after = grouped.get(path)
        rule = f"leave {path} as it is, or repeat it to [P, G, ...]"
        remedy = "use grpo_pipeline.core.groups.replicate: samples of a prompt stand side by side"
        if after is None:
            s.fail("replicate", rule, "nothing", remedy=remedy)
        kept = after.shape == before.shape and _equal(after, before)
        repeated = replicate(before, s.group_size)
        if not kept and not (after.shape == repeated.shape and _equal(after, repeated)):
            got = (
                f"shape {list(after.shape)}"
                if after.shape != repeated.shape
                else "entries of another prompt"
            )
            s.fail("replicate", rule, got, remedy=remedy)


def check_an_encoding_is_repeatable(s: Subject) -> None:
    """Check that the context is the same each time, and that detach cuts the graph and changes nothing else."""
    where = first_difference(s.context, s.call("encode", s.policy, s.batch), "context")
    if where:
        s.fail(
            "encode",
            "return the same each time",
            f"another {where}",
            remedy="switch dropout off, and draw nothing: a ratio must begin at 1",
        )
    detached = s.call("detach", s.context)
    attached = [path for path, tensor in tensors_in(detached, "context") if tensor.requires_grad]
    if detached is None or attached:
        s.fail(
            "detach",
            "return the context without a graph",
            f"a graph at {attached[0]}" if attached else "None",
            remedy="call .detach() on every tensor of the context",
        )
    if where := first_difference(s.context, detached, "context"):
        s.fail(
            "detach",
            "keep every value",
            f"another {where}",
            remedy="cut the graph and nothing else",
        )


def _check_first_axis(s: Subject, method: str, name: str, value: Any, prompts: int) -> None:
    if not (isinstance(value, Tensor | Mapping | PerPrompt) or is_dataclass(value)):
        s.fail(
            method,
            f"return a {name} that can be cut into micro-batches",
            type(value).__name__,
            remedy="use a frozen dataclass of tensors [P, ...]",
        )
    for path, entry in _entries(value, name):
        if isinstance(entry, Tensor):
            if entry.ndim == 0 or len(entry) != prompts:
                got = f"{path} of shape {list(entry.shape)} for {prompts} prompts"
                s.fail(
                    method,
                    f"give every tensor of the {name} the prompts as its first axis",
                    got,
                    remedy=PER_PROMPT,
                )
        # Values other than tensors are passed whole to every micro-batch.
        elif isinstance(entry, list | tuple | np.ndarray) and not isinstance(entry, PerPrompt):
            if len(entry) != prompts and not any(True for _ in tensors_in(entry, path)):
                continue
            got = f"{path}, a {type(entry).__name__} of {len(entry)}"
            rule = f"hold what belongs to single prompts as a tensor or PerPrompt in the {name}"
            s.fail(method, rule, got, remedy=PER_PROMPT)


def _entries(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the entries that micro-batches cut, and all other leaves."""
    if isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _entries(entry, f"{path}[{name!r}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from _entries(getattr(value, f.name), f"{path}.{f.name}")
    else:
        yield path, value


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype:
        return False
    return torch.equal(*(x.nan_to_num(nan=1.5e30) if x.is_floating_point() else x for x in (a, b)))
