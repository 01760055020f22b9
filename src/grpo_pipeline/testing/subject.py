"""Hold a task under test: a policy away from its start, a few prompts, and calls that detect forbidden side effects.

Every call goes through ``Subject.call``, which reseeds the global random streams each time. It fails if the method has drawn from
them, changed the policy, or raised. So a check only states what a method must return.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Generator, Tensor, nn

import grpo_pipeline
from grpo_pipeline.core.rng import capture_rng, restore_rng
from grpo_pipeline.core.training.precision import has_half_weights
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.base import Proposal, Task
from grpo_pipeline.tasks.spec import TaskSpec

PROMPTS, GROUP, TEMPERATURE = 3, 4, 0.7
# Size of the move from the start, relative to the scale that keeps the size of a layer's output.
SHAKE, SHAKE_VECTOR = 0.5, 0.1
OURS = Path(grpo_pipeline.__file__).resolve().parent
MUST_RUN = "call it as the training loop does (docs/adding_a_task.md), and correct what raises"


class TaskContractError(ValueError):
    """A task does not keep a promise of ``grpo_pipeline.tasks.base.Task``; the message names method, rule, value and remedy."""


@dataclass(frozen=True)
class Subject:
    """A task with the values that its checks share; made once.

    Attributes:
        task: the task under test.
        data: its data.
        policy: a policy of the task, moved away from its initial weights.
        rows: row numbers of a few prompts, int64 [P].
        spec: spec of the task; None without a spec.
        group_size: G; it differs from P, so that exchanged axes are noticed.
        temperature: temperature of the samples; it is not 1, so that a forgotten temperature is noticed.
        has_supervised: whether the supervised loss is asked for; data without answers have none.
    """

    task: Task
    data: Any
    policy: nn.Module
    rows: np.ndarray
    spec: TaskSpec | None = None
    group_size: int = GROUP
    temperature: float = TEMPERATURE
    has_supervised: bool = True

    @property
    def prompts(self) -> int:
        """Number of prompts, P."""
        return len(self.rows)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the task, and check that it has no forbidden side effect.

        Raises:
            TaskContractError: if the method raises, draws from a global random stream, or changes the policy.
        """
        reseed_global_streams()
        before, held = capture_rng(), _held(self.policy)
        try:
            found = getattr(self.task, method)(*args, **kwargs)
        except Exception as error:
            if _is_sentence(error):
                raise
            said = " ".join(str(error).split())[:300]
            self.fail(
                method, "run", f"{type(error).__name__}: {said}", remedy=MUST_RUN, cause=error
            )
        drawn = [name for name, state in capture_rng().items() if state != before[name]]
        if drawn:
            self.fail(
                method,
                "draw random numbers from the generator or the seed that it is given",
                f"a changed global random stream ({', '.join(drawn)})",
                remedy="pass generator= to what draws, or draw inside grpo_pipeline.core.rng.drawn_on_the_cpu(seed)",
            )
        changed = [name for name, state in _held(self.policy).items() if state != held[name]]
        if changed:
            self.fail(
                method,
                "leave the policy as it is",
                f"changed {', '.join(changed)}",
                remedy="only the optimiser changes weights: compute with them, keep statistics elsewhere, and restore the mode",
            )
        return found

    def fail(
        self, method: str, rule: str, got: str, *, remedy: str, cause: Exception | None = None
    ) -> NoReturn:
        """Raise the sentence about a broken promise.

        Raises:
            TaskContractError: always.
        """
        kind = type(self.task).__name__
        name = getattr(self.task, "name", kind)
        raise TaskContractError(
            f"{kind}.{method} of the task {name} must {rule}, got {got}; {remedy}"
        ) from cause

    def batch_of(self, rows: np.ndarray, *, seed: int | None = None) -> Any:
        """Make the batch of some rows; a seed makes it a training batch."""
        generator = None if seed is None else Generator().manual_seed(seed)
        return self.call("make_batch", self.data, rows, generator=generator)

    def draw(
        self,
        *,
        context: Any = None,
        group_size: int | None = None,
        seed: int = 0,
        proposal: Proposal = "policy",
    ) -> Any:
        """Draw samples of the batch's prompts, from a generator of its own."""
        return self.call(
            "sample",
            self.policy,
            self.call("detach", self.context) if context is None else context,
            self.group_size if group_size is None else group_size,
            temperature=self.temperature,
            proposal=proposal,
            generator=Generator(self.task.device).manual_seed(seed),
        )

    def score(self, rollouts: Any, *, context: Any = None, temperature: float | None = None) -> Any:
        """Score samples under the policy."""
        return self.call(
            "score",
            self.policy,
            self.context if context is None else context,
            rollouts,
            temperature=self.temperature if temperature is None else temperature,
        )

    @cached_property
    def batch(self) -> Any:
        """The batch of all rows, without augmentation."""
        return self.batch_of(self.rows)

    @cached_property
    def replicated(self) -> Any:
        """The batch with the axis G."""
        return self.call("replicate", self.batch, self.group_size)

    @cached_property
    def context(self) -> Any:
        """The encoding of the batch, with graph."""
        return self.call("encode", self.policy, self.batch)

    @cached_property
    def rollouts(self) -> Any:
        """G samples of each prompt."""
        return self.draw()

    @cached_property
    def scores(self) -> Any:
        """Score them under the policy."""
        return self.score(self.rollouts)

    @cached_property
    def outcomes(self) -> Any:
        """Decode the samples."""
        return self.call("decode", self.policy, self.context, self.rollouts, self.replicated)

    @property
    def tolerance(self) -> float:
        """Largest difference of two equal log-probabilities in nats, from rounding in this precision."""
        kind = self.task.device.type
        if torch.is_autocast_enabled(kind) or has_half_weights(self.policy):
            return 0.1
        return 2e-4 if kind == "cpu" else 5e-3


Check = Callable[[Subject], None]


def subject_of(
    task: Any,
    data: Any,
    *,
    policy: nn.Module | None = None,
    rows: np.ndarray | None = None,
    spec: TaskSpec | None = None,
) -> Subject:
    """Build the subject of a task: a policy of seed 0, moved away from its start, and the first training rows.

    Args:
        task: the task.
        data: its data.
        policy: one that is used as it is; None to build one.
        rows: of the prompts; None for the first ones of the split ``train``.
        spec: of the task, where it is known.
    """
    begun = Subject(task, data, nn.Module(), np.zeros(0, np.int64), spec)
    if policy is None:
        policy = begun.call("build_policy", 0)
        if not isinstance(policy, nn.Module):
            begun.fail(
                "build_policy",
                "return a torch module",
                type(policy).__name__,
                remedy="return the nn.Module whose parameters are trained",
            )
        move_weights(policy)
    if rows is None:
        found = begun.call("rows", data, "train")
        if not isinstance(found, np.ndarray):
            begun.fail(
                "rows",
                "return row numbers, int64 [n]",
                type(found).__name__,
                remedy="return a numpy array",
            )
        rows = found[:PROMPTS]
    return Subject(task, data, policy, rows, spec)


@contextmanager
def moved_weights(policy: nn.Module) -> Iterator[None]:
    """Move the weights of the caller's policy, and restore every bit of it afterwards."""
    kept = [(p, p.detach().clone()) for p in (*policy.parameters(), *policy.buffers()) if _moves(p)]
    modes = [(module, module.training) for module in policy.modules()]
    move_weights(policy)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)
        for module, mode in modes:
            module.training = mode
        for parameter in policy.parameters():
            parameter.grad = None


def move_weights(policy: nn.Module) -> None:
    """Add noise to every trainable weight, so that no output is zero, uniform or symmetric by its initialisation.

    The noise of a matrix is scaled by its fan-in, so that the outputs of a wide network change moderately.
    """
    generator = Generator().manual_seed(1)
    with torch.no_grad():
        for p in policy.parameters():
            if p.requires_grad and p.is_floating_point():
                fan_in = p.shape[1:].numel()
                size = SHAKE / fan_in**0.5 if p.ndim > 1 else SHAKE_VECTOR
                p.add_((size * torch.randn(p.shape, generator=generator)).to(p))


def reseed_global_streams() -> None:
    """Reseed torch's, numpy's and Python's global streams with a new seed for each call."""
    seed = int(torch.randint(2**31, (), dtype=torch.int64)) + 1
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 the global stream is what is tested
    random.seed(seed)


@contextmanager
def global_streams_kept() -> Iterator[None]:
    """Restore every global random stream afterwards."""
    before = capture_rng()
    try:
        yield
    finally:
        restore_rng(before)


def tensors_in(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) of a tree of dataclasses, mappings, lists and tuples."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from tensors_in(entry, f"{path}[{name!r}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from tensors_in(getattr(value, f.name), f"{path}.{f.name}")
    elif isinstance(value, list | tuple):
        for place, entry in enumerate(value):
            yield from tensors_in(entry, f"{path}[{place}]")


def first_difference(one: Any, other: Any, name: str) -> str | None:
    """Find the path of the first tensor in which two trees differ in any bit or in shape; None if they are equal."""
    pairs = [dict(tensors_in(value, name)) for value in (one, other)]
    for path in pairs[0].keys() | pairs[1].keys():
        a, b = (found.get(path) for found in pairs)
        if a is None or b is None or not _same(a, b):
            return path
    return None


def with_samples(rollouts: Rollouts, change: Callable[[Tensor], Tensor]) -> Rollouts:
    """Change every tensor [P, G, ...] of rollouts; tensors per prompt stay."""
    lead = rollouts.actions.shape[:2]
    return replace(
        rollouts,
        **{
            f.name: change(value)
            for f in fields(rollouts)
            if isinstance(value := getattr(rollouts, f.name), Tensor) and value.shape[:2] == lead
        },
    )


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_floating_point():
        a, b = a.nan_to_num(nan=1.5e30), b.nan_to_num(nan=1.5e30)
    return torch.equal(a.detach(), b.detach())


def _moves(tensor: Tensor) -> bool:
    """Check whether a forward pass may change a tensor of a policy: a trainable weight, or a buffer."""
    return tensor.requires_grad or not isinstance(tensor, nn.Parameter)


def _held(policy: nn.Module) -> dict[str, Any]:
    """Collect the state that no method may change: write counters, mode, trainable weights, and their gradients."""
    modules = list(
        policy.modules()
    )  # looked through before and after every call: this is the part that costs
    weights = [p for module in modules for p in module._parameters.values() if p is not None]
    statistics = [
        buffer
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]
    return {
        "weights or statistics": [(id(held), held._version) for held in (*weights, *statistics)],
        "the mode (train or eval)": [module.training for module in modules],
        "requires_grad": [p.requires_grad for p in weights],
        "gradients": [id(p.grad) for p in weights],
    }


def _is_sentence(error: Exception) -> bool:
    """Check whether an error of this package, or about missing memory, states its own remedy."""
    if isinstance(error, TaskContractError | torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, ImportError | OSError):
        return True
    own = type(error).__module__.partition(".")[0] == grpo_pipeline.__name__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    inside = trace is not None and OURS in Path(trace.tb_frame.f_code.co_filename).resolve().parents
    return own or (inside and isinstance(error, ValueError))
